// GET /v1/models and /tokenizer_info, POST /tokenize and /detokenize. They need no key: clients ask for the tokenizer before they send one.
#pragma once
#include "based/serve/endpoints/served_model.h"
#include "based/serve/http/router.h"

namespace based {

// `model` must outlive the router.
void add_model_routes(HttpRouter& router, const ServedModel& model);

}  // namespace based
