#include "based/serve/endpoints/model_endpoints.h"

#include "based/core/text.h"
#include "based/serve/protocol/tokenizer_messages.h"

namespace based {

void add_model_routes(HttpRouter& router, const ServedModel& model) {
  using Reply = std::function<std::string(const HttpRequest&)>;
  const auto add = [&router](const char* method, const char* path, Reply reply) {
    router.add(
        method, path,
        [reply = std::move(reply)](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
          responder->send(200, kJsonType, reply(request));
        },
        Access::everybody);
  };
  add("GET", "/v1/models",
      [&model](const HttpRequest&) { return dump_json(model_list(model.facts(), model.created(), model.max_positions())); });
  add("GET", "/v1/models/{id}", [&model](const HttpRequest& request) {
    if (request.capture("id") != model.name())
      throw ApiError::not_found("model", "this server has no model " + in_quotes(request.capture("id")));
    return dump_json(model_object(model.facts(), model.created(), model.max_positions()));
  });
  add("GET", "/tokenizer_info",
      [&model](const HttpRequest&) { return tokenizer_info_reply(model.tokenizer(), model.chat_template_source()); });
  add("POST", "/tokenize", [&model](const HttpRequest& request) {
    return tokenize_reply(request_json(request), model.tokenizer(), model.facts(), model.max_positions());
  });
  add("POST", "/detokenize",
      [&model](const HttpRequest& request) { return detokenize_reply(request_json(request), model.tokenizer(), model.facts()); });
}

}  // namespace based
