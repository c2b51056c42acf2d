#include "based/serve/endpoints/chats.h"

#include <algorithm>
#include <utility>

#include "based/serve/protocol/chat_messages.h"
#include "based/serve/protocol/utf8_text.h"

namespace based {
namespace {

class ChatWriter final : public HttpGenerationReply {
 public:
  ChatWriter(const ServedModel& model, ChatRequest request, std::shared_ptr<Responder> responder)
      : HttpGenerationReply(request.generation, std::move(responder)), request_(std::move(request)), head_(model.reply_head("chatcmpl-")) {
    choices_.reserve(static_cast<size_t>(request_.n));
    for (int64_t i = 0; i < request_.n; ++i) choices_.emplace_back(i, model.tokenizer(), request_.top_logprobs);
  }

  void prompt_read(int64_t, const PromptRead&, const std::string& state) override {
    for (Choice& choice : choices_) {
      if (streams()) write(chat_chunk(head_, choice.out, true, include_usage()));
      choice.prompt_state = state;
    }
  }

  void piece(int64_t, const ChoicePiece& piece) override {
    Choice& choice = choices_[static_cast<size_t>(piece.choice)];
    choice.out.text += choice.characters.push(piece.text);
    if (request_.logprobs)
      for (const TokenScore& token : piece.tokens) choice.logprobs.add(scored_token(token));
    if (streams()) send_piece(choice);
  }

  void choice_ended(int64_t, const ChoiceEnd& end, const std::string& state) override {
    Choice& choice = choices_[static_cast<size_t>(end.choice)];
    choice.out.text += choice.characters.push(end.text);
    choice.out.finish_reason = finish_reason_text(end.finish_reason);
    choice.out.state = state;
    choice.out.prompt_state = choice.prompt_state;
    if (streams()) send_piece(choice);
  }

  void done(const Usage& usage) override {
    if (streams()) {
      end_stream(chat_usage_chunk(head_, usage));
      return;
    }
    std::vector<ChatChoice> choices;
    choices.reserve(choices_.size());
    for (Choice& choice : choices_) {
      if (request_.logprobs) choice.out.logprobs = choice.logprobs.take();
      choices.push_back(std::move(choice.out));
    }
    send(chat_reply(head_, choices, usage));
  }

 private:
  struct Choice {
    Choice(int64_t index, const Tokenizer& tokenizer, int64_t most) : logprobs(tokenizer, most) { out.index = index; }
    ChatChoice out;
    std::string prompt_state;
    Utf8Text characters;
    ChatLogprobs logprobs;
  };

  // Sends the choice's new text and log-probabilities, if there are any, and its end.
  void send_piece(Choice& choice) {
    ChatChoice& out = choice.out;
    if (!choice.logprobs.empty()) out.logprobs = choice.logprobs.take();
    if (out.text.empty() && out.logprobs.empty() && out.finish_reason.empty()) return;
    write(chat_chunk(head_, out, false, include_usage()));
    ChatChoice next;
    next.index = out.index;
    out = std::move(next);
  }

  ChatRequest request_;
  ReplyHead head_;
  std::vector<Choice> choices_;
};

std::string chat_prompt(const ServedModel& model, const ChatRequest& request, const Json& messages, bool add_generation_prompt) {
  Json variables = request.template_variables;
  Json end;
  if (const auto id = model.tokenizer().end_of_text()) end = std::string(model.tokenizer().token_bytes(*id));
  variables["bos_token"] = end;
  variables["eos_token"] = end;
  variables["add_generation_prompt"] = add_generation_prompt;
  try {
    return model.chat_template()->render(messages, variables);
  } catch (const TemplateRenderError& error) {
    throw ApiError::invalid("messages", std::string("messages: ") + error.what());
  }
}

// The number of tokens of `ids`, the whole prompt, that the messages before the first one of another role than "system" or "developer" make
// by themselves; 0 if the template does not begin the prompt with them.
int64_t system_tokens(const ServedModel& model, const ChatRequest& request, const std::vector<int64_t>& ids) {
  Json messages = Json::array();
  for (const Json& message : request.messages) {
    const Json& role = message.at("role");
    if (role != "system" && role != "developer") break;
    messages.push_back(message);
  }
  if (messages.empty() || messages.size() == request.messages.size()) return 0;
  try {
    const std::vector<int64_t> system = model.encode(chat_prompt(model, request, messages, false));
    return std::mismatch(system.begin(), system.end(), ids.begin(), ids.end()).first - system.begin();
  } catch (const ApiError&) {  // a template may refuse messages without a user
    return 0;
  }
}

void handle_chat(const GenerationContext& context, const HttpRequest& http, const std::shared_ptr<Responder>& responder) {
  const ServedModel& model = context.model;
  if (model.chat_template() == nullptr)
    throw ApiError::unsupported("messages",
                                "messages: the model has no chat template; start the server with --template FILE, or use /v1/completions");
  ChatRequest request = parse_chat_request(request_json(http), model.limits(), model.facts());
  require_store(context, request.generation);
  GenerationPlan plan;
  set_sender(plan, http);
  plan.parts = model.parts_of({chat_prompt(model, request, request.messages, request.add_generation_prompt)}, request.generation.states,
                              context.states, http.owner);
  if (plan.parts[0].ids.empty() && plan.parts[0].start == nullptr)
    throw ApiError::invalid("messages", "messages: the template makes an empty prompt of them");
  if (plan.parts[0].start == nullptr) plan.parts[0].boundaries.push_back(system_tokens(model, request, plan.parts[0].ids));
  plan.choices = request.n;
  plan.allowed = model.allowed_tokens(request.generation.constraint);
  if (request.logprobs) plan.top_log_probabilities = std::max<int64_t>(request.top_logprobs, 1);
  GenerationFields generation = request.generation;
  auto writer = std::make_unique<ChatWriter>(model, std::move(request), responder);
  start_run(std::make_shared<GenerationRun>(context.service, context.queue, context.states, std::move(generation), std::move(plan),
                                            std::move(writer)),
            responder);
}

}  // namespace

void add_chat_routes(HttpRouter& router, const GenerationContext& context) {
  router.add("POST", "/v1/chat/completions", [context](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
    handle_chat(context, request, responder);
  });
}

}  // namespace based
