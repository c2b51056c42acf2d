// POST /v1/chat/completions. It needs a chat template: the base models have none, and an invented one would give wrong answers silently.
#pragma once
#include "based/serve/endpoints/completions.h"

namespace based {

void add_chat_routes(HttpRouter& router, const GenerationContext& context);

}  // namespace based
