// /v1/states and /v1/responses.
#pragma once
#include "based/serve/endpoints/completions.h"
#include "based/serve/http/options.h"
#include "based/serve/states/seal.h"

namespace based {

// All must outlive the router.
struct StateContext {
  GenerationContext generation;
  const TextModel& model;
  const StateSeal& seal;
  int64_t max_body_bytes = -1;  // for requests that may contain a state (state_body_bytes); −1: HttpServerOptions::max_body_bytes
};

// The largest body of a request with a state: HttpServerOptions::max_body_bytes and the size of a sealed state after as many tokens as one
// request may have, in base64; at most max_total_body_bytes.
int64_t state_body_bytes(const LanguageModel& model, const RequestLimits& limits, const HttpServerOptions& http);

// POST, PUT and GET /v1/states, GET and DELETE /v1/states/{id}, GET /v1/states/{id}/content. Needs GenerationContext::states.
void add_state_routes(HttpRouter& router, const StateContext& context);
// POST /v1/responses, GET and DELETE /v1/responses/{id}. A response id is its end state: "resp_" and "st_" have the same digits. Without
// GenerationContext::states, responses are not stored.
void add_response_routes(HttpRouter& router, const StateContext& context);

}  // namespace based
