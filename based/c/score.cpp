#include "based/c/handles.h"

namespace based::c {
namespace {

std::vector<ScoreRequest> score_requests(const Loaded& loaded, const based_score_request* requests, size_t count) {
  std::vector<ScoreRequest> all;
  all.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const based_score_request& one = requests[i];
    const std::string name = "based_score: the request number " + std::to_string(i);
    if (one.context_count == 0 || one.continuation_count == 0)
      throw UsageError(name + " needs at least one token of context and one of continuation");
    require(one.context, (name + ": context").c_str());
    require(one.continuation, (name + ": continuation").c_str());
    all.push_back({{one.context, one.context + one.context_count}, {one.continuation, one.continuation + one.continuation_count}});
    require_ids(loaded.model(), all.back().context, name + ": context");
    require_ids(loaded.model(), all.back().continuation, name + ": continuation");
  }
  return all;
}

// The model's scorer, made anew for longer requests: its cache is sized by them.
Scorer& scorer_for(Loaded& loaded, const std::vector<ScoreRequest>& requests) {
  size_t longest = 0;
  for (const ScoreRequest& request : requests) longest = std::max(longest, request.context.size() + request.continuation.size());
  if (loaded.scorer && static_cast<int64_t>(longest) <= loaded.scorer_length) return *loaded.scorer;
  ScorerOptions options;
  options.invariant = loaded.invariant;
  options.max_length = std::max({options.max_length, loaded.scorer_length, static_cast<int64_t>(longest)});
  options.model = loaded.folder;
  loaded.scorer.reset();
  loaded.idle_engine.reset();  // its memory
  loaded.scorer = std::make_unique<Scorer>(loaded.model(), *loaded.text.tokenizer, options);
  loaded.scorer_length = options.max_length;
  return *loaded.scorer;
}

}  // namespace
}  // namespace based::c

using namespace based::c;

based_status based_score(based_model* model, based_score_request* requests, size_t count, based_progress progress, void* context) {
  return guarded([&] {
    require(model, "based_score: model");
    if (count == 0) return;
    require(requests, "based_score: requests");
    Loaded& loaded = *model->loaded;
    const std::vector<based::ScoreRequest> all = score_requests(loaded, requests, count);
    const ModelCall call(loaded);
    based::Scorer::Progress proceed;
    if (progress != nullptr) proceed = [&](int64_t tokens) { return progress(context, tokens) == 0; };
    const std::vector<based::ContinuationScore> scores = scorer_for(loaded, all).score(all, proceed);
    if (scores.empty()) throw based::Error(kStopped);
    for (size_t i = 0; i < count; ++i) {
      based_score_request& one = requests[i];
      const based::ContinuationScore& score = scores[i];
      one.log_likelihood = score.log_likelihood;
      one.greedy = score.greedy ? 1 : 0;
      if (one.log_probabilities != nullptr)
        std::copy(score.log_probabilities.begin(), score.log_probabilities.end(), one.log_probabilities);
    }
  });
}
