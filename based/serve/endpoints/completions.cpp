#include "based/serve/endpoints/completions.h"

#include <algorithm>
#include <utility>

#include "based/serve/protocol/completion_reply.h"

namespace based {
namespace {

// Collects the choices of a request, or streams them.
class CompletionWriter final : public HttpGenerationReply {
 public:
  CompletionWriter(const ServedModel& model, CompletionRequest request, std::vector<std::vector<int64_t>> prompts,
                   std::shared_ptr<Responder> responder)
      : HttpGenerationReply(request.generation, std::move(responder)),
        model_(model),
        request_(std::move(request)),
        prompts_(std::move(prompts)),
        head_(model.reply_head("cmpl-")) {
    choices_.reserve(prompts_.size() * static_cast<size_t>(request_.n));
    for (size_t i = 0; i < prompts_.size() * static_cast<size_t>(request_.n); ++i)
      choices_.emplace_back(static_cast<int64_t>(i), model.tokenizer(), request_.logprobs);
  }

  void prompt_read(int64_t part, const PromptRead& prompt, const std::string& state) override {
    const std::vector<int64_t>& ids = prompts_[static_cast<size_t>(part)];
    std::vector<ScoredToken> scored;
    if (request_.scores_prompt()) {
      scored.reserve(ids.size());
      for (const int64_t id : ids) scored.push_back({id, false, 0, {}});
      for (size_t i = 0; i < prompt.scores.size(); ++i)
        scored.at(static_cast<size_t>(prompt.first_scored) + i) = scored_token(prompt.scores[i]);
    }
    const std::string text = request_.echo ? model_.decode(ids) : "";
    for (int64_t i = part * request_.n; i < (part + 1) * request_.n; ++i) {
      Choice& choice = choices_[static_cast<size_t>(i)];
      choice.out.prompt_state = state;
      if (request_.prompt_logprobs >= 0)
        choice.out.prompt_logprobs = prompt_logprobs_json(model_.tokenizer(), scored, request_.prompt_logprobs);
      choice.out.text += choice.characters.push(text);
      if (request_.echo && request_.logprobs >= 0)
        for (const ScoredToken& token : scored) choice.logprobs.add(token);
      if (streams()) send_piece(choice);
    }
  }

  void piece(int64_t part, const ChoicePiece& piece) override {
    Choice& choice = this->choice(part, piece.choice);
    choice.out.text += choice.characters.push(piece.text);
    if (request_.logprobs >= 0)
      for (const TokenScore& token : piece.tokens) choice.logprobs.add(scored_token(token));
    if (streams()) send_piece(choice);
  }

  void choice_ended(int64_t part, const ChoiceEnd& end, const std::string& state) override {
    Choice& choice = this->choice(part, end.choice);
    choice.out.text += choice.characters.push(end.text);
    choice.out.finish_reason = finish_reason_text(end.finish_reason);
    choice.out.state = state;
    if (streams()) send_piece(choice);
  }

  void done(const Usage& usage) override {
    if (streams()) {
      end_stream(completion_usage_chunk(head_, usage));
      return;
    }
    std::vector<CompletionChoice> choices;
    choices.reserve(choices_.size());
    for (Choice& choice : choices_) {
      if (request_.logprobs >= 0) choice.out.logprobs = choice.logprobs.take();
      choices.push_back(std::move(choice.out));
    }
    send(completion_reply(head_, choices, usage));
  }

 private:
  struct Choice {
    Choice(int64_t index, const Tokenizer& tokenizer, int64_t most) : logprobs(tokenizer, most) { out.index = index; }
    CompletionChoice out;
    Utf8Text characters;
    CompletionLogprobs logprobs;
  };

  Choice& choice(int64_t part, int64_t index) { return choices_[static_cast<size_t>(part * request_.n + index)]; }

  // Sends the choice's new text and log-probabilities, if there are any, and its end.
  void send_piece(Choice& choice) {
    CompletionChoice& out = choice.out;
    if (!choice.logprobs.empty()) out.logprobs = choice.logprobs.take();
    if (out.text.empty() && out.logprobs.empty() && out.prompt_logprobs.empty() && out.finish_reason.empty()) return;
    const std::string prompt_state = out.prompt_state;  // in the last event, together with the state
    if (out.finish_reason.empty()) out.prompt_state.clear();
    write(completion_chunk(head_, out, include_usage()));
    CompletionChoice next;
    next.index = out.index;
    next.prompt_state = prompt_state;
    out = std::move(next);
  }

  const ServedModel& model_;
  CompletionRequest request_;
  std::vector<std::vector<int64_t>> prompts_;
  ReplyHead head_;
  std::vector<Choice> choices_;
};

}  // namespace

void require_store(const GenerationContext& context, const GenerationFields& fields) {
  if (fields.store.any() && context.states == nullptr) throw ApiError::unsupported("store", "store: this server stores no states");
}

void handle_completion(const GenerationContext& context, const HttpRequest& http, const std::shared_ptr<Responder>& responder) {
  const ServedModel& model = context.model;
  CompletionRequest request = parse_completion_request(request_json(http), model.limits(), model.facts());
  require_store(context, request.generation);
  GenerationPlan plan;
  set_sender(plan, http);
  plan.parts = model.parts_of(request.prompts, request.generation.states, context.states, http.owner);
  plan.choices = request.n;
  plan.score_prompt = request.scores_prompt();
  plan.allowed = model.allowed_tokens(request.generation.constraint);
  // The token's own log-probability comes with the most likely ones.
  const int64_t top = std::max(request.logprobs, request.prompt_logprobs);
  plan.top_log_probabilities = top < 0 ? 0 : std::max<int64_t>(top, 1);
  std::vector<std::vector<int64_t>> prompts;
  prompts.reserve(plan.parts.size());
  for (const GenerationPart& part : plan.parts) {
    if (part.ids.empty() && part.start == nullptr) throw ApiError::invalid("prompt", "prompt: has no tokens");
    prompts.push_back(part.ids);
  }
  GenerationFields generation = request.generation;
  auto writer = std::make_unique<CompletionWriter>(model, std::move(request), std::move(prompts), responder);
  start_run(std::make_shared<GenerationRun>(context.service, context.queue, context.states, std::move(generation), std::move(plan),
                                            std::move(writer)),
            responder);
}

void add_completion_routes(HttpRouter& router, const GenerationContext& context) {
  router.add("POST", "/v1/completions", [context](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
    handle_completion(context, request, responder);
  });
}

}  // namespace based
