// POST /v1/completions.
#pragma once
#include <memory>

#include "based/serve/endpoints/served_model.h"
#include "based/serve/http/router.h"

namespace based {

// The parts of a server that endpoints of generated text share. All must outlive the router. The queue must also outlive the service.
struct GenerationContext {
  const ServedModel& model;
  Service& service;
  TaskQueue& queue;
  StateStore* states = nullptr;  // null: requests that name or store states get a 400
};

// Throws ApiError 400 if the request stores states and the server has no store.
void require_store(const GenerationContext& context, const GenerationFields& fields);

void handle_completion(const GenerationContext& context, const HttpRequest& request, const std::shared_ptr<Responder>& responder);
void add_completion_routes(HttpRouter& router, const GenerationContext& context);

}  // namespace based
