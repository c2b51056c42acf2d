#include "based/eval/scorer_model.h"

#include "based/core/hash.h"
#include "based/eval/left_pad.h"
#include "based/eval/request_tokens.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

constexpr int64_t kDefaultMaxLength = 2048;
constexpr uint64_t kBlockBytesCpu = uint64_t{1} << 16, kBlockBytesGpu = uint64_t{1} << 21;

int64_t checked_max_length(const ModelConfig& config, int64_t max_length) {
  if (max_length < 0) throw UsageError("--max-length must be at least 1, got " + std::to_string(max_length));
  const int64_t positions = config.max_positions;
  if (positions > 0 && max_length > positions)
    throw UsageError("--max-length is " + std::to_string(max_length) + ", and the model has " + std::to_string(positions) + " positions");
  if (max_length > 0) return max_length;
  return positions > 0 ? positions : kDefaultMaxLength;
}

ScorerOptions with_max_length(ScorerOptions options, int64_t max_length) {
  options.max_length = max_length;
  return options;
}

std::vector<int64_t> without_first(const std::vector<int64_t>& ids, int64_t dropped) { return {ids.begin() + dropped, ids.end()}; }

// The requests of several documents by kind, and where each answer belongs.
class CollectedRequests {
 public:
  CollectedRequests(std::span<const EvalDocument> documents, const Tokenizer& tokenizer, int64_t max_length)
      : tokenizer_(tokenizer), max_length_(max_length) {
    for (size_t i = 0; i < documents.size(); ++i) {
      const EvalDocument& document = documents[i];
      answers.emplace_back(document.requests.size());
      const std::vector<RequestTokens> tokens = encode_requests(tokenizer, document, max_length);
      for (size_t r = 0; r < document.requests.size(); ++r) {
        add(document, document.requests[r], tokens[r], {i, r});
        answers.back()[r].tokens_cut = tokens[r].dropped;
      }
    }
  }

  void take(const std::vector<ContinuationScore>& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      EvalAnswer& answer = at(score_places_[i]);
      answer.log_likelihood += results[i].log_likelihood;  // the windows of a rolling request, from left to right
      answer.greedy = results[i].greedy;
    }
  }
  void take(const std::vector<std::string>& texts) {
    for (size_t i = 0; i < texts.size(); ++i) at(text_places_[i]).text = cut_at_stops(texts[i], generations[i].stops);
  }

  std::vector<ScoreRequest> scores;
  std::vector<GenerationRequest> generations;
  std::vector<std::vector<EvalAnswer>> answers;

 private:
  struct AnswerPlace {
    size_t document, request;
  };
  EvalAnswer& at(const AnswerPlace& place) { return answers[place.document][place.request]; }

  void add(const EvalDocument& document, const EvalRequest& request, const RequestTokens& tokens, const AnswerPlace& place) {
    switch (request.kind) {
      case EvalRequest::Kind::rolling:
        for (const RollingWindow& window : rolling_windows(static_cast<int64_t>(tokens.continuation.size()), max_length_))
          add_score(document, window_tokens(window, tokens.continuation, prefix_token(tokenizer_)), place);
        return;
      case EvalRequest::Kind::score: return add_score(document, tokens, place);
      case EvalRequest::Kind::generate: break;
    }
    if (request.max_tokens < 1 || request.max_tokens >= max_length_) {
      throw Error(document.place + ": generates " + std::to_string(request.max_tokens) + " tokens, which must be from 1 to " +
                  std::to_string(max_length_ - 1) + ", below --max-length");
    }
    text_places_.push_back(place);
    generations.push_back({without_first(tokens.context, tokens.dropped), stop_strings(request.until), request.max_tokens});
  }

  void add_score(const EvalDocument& document, const RequestTokens& tokens, const AnswerPlace& place) {
    if (tokens.continuation.empty())
      throw Error(document.place + ": a continuation has no tokens of its own, so that there is nothing to score");
    if (tokens.context.empty())
      throw Error(document.place + ": the context is only white space, which belongs to the continuation, so that no token precedes it");
    if (tokens.dropped >= static_cast<int64_t>(tokens.context.size())) {
      throw Error(document.place + ": a continuation has " + std::to_string(tokens.continuation.size()) +
                  " tokens, more than --max-length allows, which is " + std::to_string(max_length_) +
                  "; raise it, or leave the document out by --offset and --limit");
    }
    score_places_.push_back(place);
    scores.push_back({without_first(tokens.context, tokens.dropped), tokens.continuation});
  }

  const Tokenizer& tokenizer_;
  int64_t max_length_;
  std::vector<AnswerPlace> score_places_, text_places_;
};

}  // namespace

ScorerModel::ScorerModel(const TextModel& model, ScorerOptions options, int64_t max_length, int64_t left_pad)
    : model_(model),
      options_(with_max_length(std::move(options), checked_max_length(model.model->config(), max_length))),
      max_length_(options_.max_length),
      left_pad_(left_pad),
      scorer_(*model.model, *model.tokenizer, options_) {
  if (left_pad_ < 0) throw UsageError("--left-pad must be at least 0, got " + std::to_string(left_pad_));
  if (left_pad_ > 0 && !model.tokenizer->end_of_text()) throw UsageError("--left-pad needs a tokenizer with <|endoftext|>");
}

std::vector<std::vector<EvalAnswer>> ScorerModel::answer(std::span<const EvalDocument> documents, const Progress& progress) {
  CollectedRequests requests(documents, *model_.tokenizer, max_length_);
  const std::vector<ContinuationScore> scores = scorer_.score(requests.scores, progress);
  if (scores.size() < requests.scores.size()) return {};
  requests.take(scores);
  int64_t scored = 0;
  for (const ScoreRequest& each : requests.scores) scored += static_cast<int64_t>(each.context.size() + each.continuation.size());
  if (left_pad_ > 0) pad_left(requests.generations, left_pad_, prefix_token(*model_.tokenizer));
  const std::vector<std::string> texts =
      scorer_.generate(requests.generations, [&](int64_t tokens) { return !progress || progress(scored + tokens); });
  if (texts.size() < requests.generations.size()) return {};
  requests.take(texts);
  return std::move(requests.answers);
}

uint64_t ScorerModel::block_bytes() const { return model_.model->device().is_cuda() ? kBlockBytesGpu : kBlockBytesCpu; }

Json ScorerModel::description() const {
  Json json{{"model", model_.hash},
            {"tokenizer", hex(model_.tokenizer->hash())},
            {"dtype", float_type_name(model_.model->dtype())},
            {"device", model_.model->device().is_cuda() ? "cuda" : "cpu"},
            {"max_length", max_length_},
            {"invariant", options_.invariant},
            {"padded_columns", options_.padded_columns}};
  if (left_pad_ > 0) json["left_pad"] = left_pad_;
  if (scorer_.recurrent()) json["state_bytes"] = state_bytes(*model_.model, max_length_);  // bytes of a sequence
  return json;
}

}  // namespace based
