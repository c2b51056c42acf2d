#include <utility>

#include "based/core/text.h"
#include "based/serve/protocol/identifiers.h"
#include "based/serve/protocol/response_messages.h"
#include "based/serve/protocol/utf8_text.h"
#include "based/serve/states/endpoints.h"

namespace based {
namespace {

constexpr std::string_view kResponsePrefix = "resp_", kStatePrefix = "st_";

// The id of a response's end state. Throws ApiError 404 for other ids.
std::string state_id_of(const std::string& response, const std::string& param) {
  if (!response.starts_with(kResponsePrefix)) throw ApiError::not_found(param, param + ": there is no response " + in_quotes(response));
  return std::string(kStatePrefix) + response.substr(kResponsePrefix.size());
}

StateInfo response_info(StateStore& states, const std::string& owner, const std::string& response, const std::string& param) {
  StateInfo info;
  try {
    info = states.info(owner, state_id_of(response, param), param);
  } catch (const ApiError& error) {
    if (error.status() != 404) throw;
  }
  // A state of /v1/states has no document: it is no response.
  if (!info.document.is_object()) throw ApiError::not_found(param, param + ": there is no response " + in_quotes(response));
  return info;
}

// Where a response starts, and where its end state goes.
struct ResponsePlan {
  std::string owner;
  bool uploaded = false;
  std::string parent;  // the id of the state that it continues
};

class ResponseWriter final : public GenerationReply {
 public:
  ResponseWriter(const StateContext& context, ResponseObject response, ResponsePlan plan, std::shared_ptr<Responder> responder)
      : context_(context),
        response_(std::move(response)),
        plan_(std::move(plan)),
        streams_(response_.request.generation.stream),
        responder_(std::move(responder)) {}

  void begin() override {
    if (!streams_) return;
    responder_->begin_stream(200, kEventStreamType);
    began_ = true;
    responder_->write(events_.begin(response_));
  }
  bool is_written(std::function<void()> callback) override { return !began_ || responder_->is_written(std::move(callback)); }
  void prompt_read(int64_t, const PromptRead&, const std::string&) override {}
  void piece(int64_t, const ChoicePiece& piece) override { add_text(piece.text); }
  void choice_ended(int64_t, const ChoiceEnd& end, const std::string&) override {
    add_text(end.text);
    const bool completed = end.finish_reason == "stop" || end.finish_reason == "end_of_text";
    response_.status = completed ? "completed" : "incomplete";
    if (!completed) response_.incomplete_reason = "max_output_tokens";
    end_state_ = end.state;
  }
  void done(const Usage& usage) override {
    response_.usage = usage;
    response_.has_text = true;
    keep_state();
    if (streams_) {
      responder_->write(events_.end(response_));
      responder_->end();
    } else {
      responder_->send(200, kJsonType, dump_json(response_.to_json()));
    }
  }
  void failed(const ApiError& error) override {
    if (!began_) return reply_error(*responder_, error);
    responder_->write(events_.error(error));
    responder_->end();
  }

 private:
  void add_text(const std::string& bytes) {
    const std::string text = characters_.push(bytes);
    if (text.empty()) return;
    if (streams_) responder_->write(events_.delta(response_, text));
    response_.text += text;
  }

  // Seals and stores the state after the text, as the request asked.
  void keep_state() {
    if (end_state_ == nullptr) return;
    if (response_.request.include_sealed) {
      const std::string& hash = context_.model.hash;
      response_.sealed = context_.seal.seal({sequence_file_content(*end_state_, hash, "the state"), plan_.uploaded}, plan_.owner, hash);
    }
    if (!response_.request.store) return;
    NewState about{.owner = plan_.owner};
    about.id = response_.state = state_id_of(response_.id, "id");
    about.parent = plan_.parent;
    about.ttl = response_.request.ttl_seconds;
    about.uploaded = plan_.uploaded;
    about.document = response_.to_json();
    context_.generation.states->put(end_state_, about);
  }

  const StateContext context_;
  ResponseObject response_;
  const ResponsePlan plan_;
  const bool streams_;
  bool began_ = false;
  std::shared_ptr<Responder> responder_;
  Utf8Text characters_;
  ResponseEvents events_;
  std::shared_ptr<const SequenceState> end_state_;
};

// The state that the request continues, if there is one.
GenerationPart start_of(const StateContext& context, const ResponseRequest& request, const std::string& owner) {
  GenerationPart part;
  if (!request.previous.empty()) {
    StateStore* const states = context.generation.states;
    if (states == nullptr) throw ApiError::unsupported("previous_response_id", "previous_response_id: this server stores no responses");
    const StateInfo info = response_info(*states, owner, request.previous, "previous_response_id");
    part.start = states->get(owner, info.id, "previous_response_id").sequence;
    part.parent = info.id;
    part.uploaded = info.uploaded;
  }
  if (!request.sealed.empty()) {
    const StateSeal::Opened opened = context.seal.open(request.sealed, owner, context.model.hash, "input");
    part.start = std::make_shared<const SequenceState>(parse_state(opened.file, *context.model.model, context.model.hash));
    part.uploaded = opened.uploaded;
  }
  return part;
}

void handle_response(const StateContext& context, const HttpRequest& http, const std::shared_ptr<Responder>& responder) {
  const ServedModel& model = context.generation.model;
  ResponseRequest request = parse_response_request(request_json(http), model.limits(), model.facts());
  if (context.generation.states == nullptr) {
    if (request.store && request.store_is_set) throw ApiError::unsupported("store", "store: this server stores no responses");
    request.store = false;
  }
  GenerationPart part = start_of(context, request, http.owner);
  part.ids = model.encode(request.text, part.start ? static_cast<int64_t>(part.start->ids.size()) : 0);
  if (part.ids.empty() && part.start == nullptr) throw ApiError::invalid("input", "input: has no text");
  ResponsePlan reply_plan{http.owner, part.uploaded, part.parent};
  GenerationPlan plan;
  set_sender(plan, http);
  plan.keep_end_state = request.store || request.include_sealed;
  plan.allowed = model.allowed_tokens(request.generation.constraint);
  plan.parts.push_back(std::move(part));

  const ReplyHead head = model.reply_head("msg_");
  ResponseObject response;
  response.id = std::string(kResponsePrefix) + StateStore::new_id().substr(kStatePrefix.size());
  response.message_id = head.id;
  response.sealed_id = "rs_" + random_hex(12);
  response.created = head.created;
  response.model = head.model;
  response.request = std::move(request);
  response.request.sealed.clear();  // it may be megabytes
  GenerationFields generation = response.request.generation;
  auto writer = std::make_unique<ResponseWriter>(context, std::move(response), std::move(reply_plan), responder);
  start_run(std::make_shared<GenerationRun>(context.generation.service, context.generation.queue, nullptr, std::move(generation),
                                            std::move(plan), std::move(writer)),
            responder);
}

StateStore& store_of(const StateContext& context) {
  if (context.generation.states == nullptr) throw ApiError::not_found("response_id", "response_id: this server stores no responses");
  return *context.generation.states;
}

}  // namespace

void add_response_routes(HttpRouter& router, const StateContext& context) {
  using Reply = const std::shared_ptr<Responder>&;
  router.add(
      "POST", "/v1/responses", [context](const HttpRequest& http, Reply responder) { handle_response(context, http, responder); },
      Access::with_key, context.max_body_bytes);
  router.add("GET", "/v1/responses/{id}", [context](const HttpRequest& http, Reply responder) {
    const StateInfo info = response_info(store_of(context), http.owner, std::string(http.capture("id")), "response_id");
    responder->send(200, kJsonType, dump_json(info.document));
  });
  router.add("DELETE", "/v1/responses/{id}", [context](const HttpRequest& http, Reply responder) {
    const std::string id(http.capture("id"));
    StateStore& states = store_of(context);
    states.remove(http.owner, response_info(states, http.owner, id, "response_id").id);
    responder->send(200, kJsonType, dump_json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  });
}

}  // namespace based
