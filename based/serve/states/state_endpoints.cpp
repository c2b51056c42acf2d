#include <algorithm>
#include <charconv>
#include <utility>

#include "based/generate/memory.h"
#include "based/serve/protocol/state_request.h"
#include "based/serve/states/endpoints.h"

namespace based {
namespace {

constexpr int64_t kListedStates = 1000, kMostListedStates = 10000;
constexpr int64_t kStateHeaderBytes = 4096;  // an upper bound, for each layer

void send_json(Responder& responder, const Json& json) { responder.send(200, kJsonType, dump_json(json)); }

// Replies with the state after the prompt.
class StateWriter final : public HttpGenerationReply {
 public:
  StateWriter(StateStore& states, std::string owner, const GenerationFields& fields, std::shared_ptr<Responder> responder)
      : HttpGenerationReply(fields, std::move(responder)), states_(states), owner_(std::move(owner)) {}

  void prompt_read(int64_t, const PromptRead&, const std::string& state) override { id_ = state; }
  void piece(int64_t, const ChoicePiece&) override {}
  void choice_ended(int64_t, const ChoiceEnd&, const std::string&) override {}
  void done(const Usage& usage) override {
    Json json = states_.info(owner_, id_).to_json();
    json["usage"] = {{"prompt_tokens", usage.prompt_tokens}, {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
    send(dump_json(json));
  }

 private:
  StateStore& states_;
  std::string owner_, id_;
};

void handle_new_state(const StateContext& context, const HttpRequest& http, const std::shared_ptr<Responder>& responder) {
  const ServedModel& model = context.generation.model;
  const StateRequest request = parse_state_request(request_json(http), model.limits(), model.facts());
  GenerationFields generation;
  generation.store.at_prompt = true;
  generation.store.ttl_seconds = request.ttl_seconds;
  std::vector<std::string> start;
  if (!request.state.empty()) start.push_back(request.state);
  GenerationPlan plan;
  set_sender(plan, http);
  plan.states_label = request.label;
  StateStore& states = *context.generation.states;
  plan.parts = model.parts_of({request.prompt}, start, &states, http.owner);
  if (plan.parts[0].ids.empty() && plan.parts[0].start == nullptr) throw ApiError::invalid("prompt", "prompt: has no tokens");
  auto writer = std::make_unique<StateWriter>(states, http.owner, generation, responder);
  start_run(std::make_shared<GenerationRun>(context.generation.service, context.generation.queue, &states, generation, std::move(plan),
                                            std::move(writer)),
            responder);
}

// A whole number of the query, or `absent`.
int64_t query_number(const HttpRequest& http, const char* name, int64_t absent, int64_t least, int64_t most) {
  const std::string text = http.query_value(name);
  if (text.empty()) return absent;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    throw ApiError::invalid(name,
                            std::string(name) + ": must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  return value;
}

void handle_upload(StateStore& states, const HttpRequest& http, Responder& responder) {
  NewState about{.owner = http.owner};
  about.label = http.query_value("label");
  if (!http.query_value("ttl").empty()) about.ttl = query_number(http, "ttl", 0, 0, kMostStateTtl);
  send_json(responder, states.put_file(http.body, about).to_json());
}

void handle_list(StateStore& states, const HttpRequest& http, Responder& responder) {
  const auto limit = static_cast<size_t>(query_number(http, "limit", kListedStates, 1, kMostListedStates));
  const std::string after = http.query_value("after");
  Json data = Json::array();
  bool begun = after.empty(), has_more = false;
  for (const StateInfo& info : states.list(http.owner)) {
    if (begun && data.size() == limit) {
      has_more = true;
      break;
    }
    if (begun) data.push_back(info.to_json());
    begun = begun || info.id == after;
  }
  if (!begun) throw ApiError::not_found("after", "after: there is no such state");
  send_json(responder, {{"object", "list"}, {"data", std::move(data)}, {"has_more", has_more}});
}

std::string captured_id(const HttpRequest& http) { return std::string(http.capture("id")); }

}  // namespace

int64_t state_body_bytes(const LanguageModel& model, const RequestLimits& limits, const HttpServerOptions& http) {
  const ModelConfig& config = model.config();
  int64_t tokens = limits.prompt_tokens + limits.max_tokens;
  if (config.max_positions > 0) tokens = std::min(tokens, config.max_positions);
  const int64_t headers = kStateHeaderBytes * (1 + static_cast<int64_t>(config.layers.size()));
  const int64_t file = sequence_bytes({config, model.dtype(), model.device()}, tokens) + headers;
  return std::min(http.max_total_body_bytes, http.max_body_bytes + (file + 2) / 3 * 4);
}

void add_state_routes(HttpRouter& router, const StateContext& context) {
  using Reply = const std::shared_ptr<Responder>&;
  StateStore* const states = context.generation.states;
  BASED_ASSERT(states != nullptr);
  router.add("POST", "/v1/states", [context](const HttpRequest& http, Reply responder) { handle_new_state(context, http, responder); });
  router.add(
      "PUT", "/v1/states", [states](const HttpRequest& http, Reply responder) { handle_upload(*states, http, *responder); },
      Access::with_key, context.max_body_bytes);
  router.add("GET", "/v1/states", [states](const HttpRequest& http, Reply responder) { handle_list(*states, http, *responder); });
  router.add("GET", "/v1/states/{id}", [states](const HttpRequest& http, Reply responder) {
    send_json(*responder, states->info(http.owner, captured_id(http), "id").to_json());
  });
  router.add("DELETE", "/v1/states/{id}", [states](const HttpRequest& http, Reply responder) {
    states->remove(http.owner, captured_id(http));
    send_json(*responder, {{"id", captured_id(http)}, {"object", "state"}, {"deleted", true}});
  });
  router.add("GET", "/v1/states/{id}/content", [states](const HttpRequest& http, Reply responder) {
    responder->send(200, "application/octet-stream", states->content(http.owner, captured_id(http)),
                    {{"Content-Disposition", "attachment; filename=\"" + captured_id(http) + ".state\""}});
  });
}

}  // namespace based
