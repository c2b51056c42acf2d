#include "based/serve/protocol/state_request.h"

#include <utility>

#include "based/serve/protocol/request_fields.h"

namespace based {

StateRequest parse_state_request(const Json& request, const RequestLimits& limits, const ModelFacts& model) {
  const RequestFields fields(request);
  check_model_name(fields, model);
  StateRequest out;
  std::vector<Prompt> prompts = parse_prompts(fields.find("prompt"), limits, model.vocab_size);
  if (prompts.size() != 1) fields.fail("prompt", "must be one prompt: a string or a list of token ids");
  out.prompt = std::move(prompts.front());
  out.state = fields.text("state");
  if (fields.has("state") && out.state.empty()) fields.fail("state", "must be the id of a state");
  out.label = fields.text("label");
  if (fields.has("ttl")) out.ttl_seconds = fields.integer("ttl", 0, 0, kMostStateTtl);
  return out;
}

}  // namespace based
