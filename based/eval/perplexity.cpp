#include "based/eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "based/generate/engine.h"
#include "based/models/limits.h"

namespace based {
namespace {

// Iterates over the contexts of all documents.
class Contexts {
 public:
  Contexts(const std::vector<std::vector<int64_t>>& documents, int64_t length) : documents_(documents), length_(length) {}

  // The next context with at least two tokens; no ids at the end.
  DocumentContext next() {
    for (; document_ < documents_.size(); ++document_, at_ = 0) {
      const std::vector<int64_t>& ids = documents_[document_];
      const auto size = static_cast<int64_t>(ids.size());
      if (at_ + 1 >= size) continue;
      const int64_t begin = at_, end = length_ > 0 ? std::min(size, begin + length_) : size;
      at_ = end - 1;
      return {static_cast<int64_t>(document_), begin, std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))};
    }
    return {};
  }

 private:
  const std::vector<std::vector<int64_t>>& documents_;
  int64_t length_, at_ = 0;
  size_t document_ = 0;
};

}  // namespace

double Perplexity::value() const { return tokens > 0 ? std::exp(nats / static_cast<double>(tokens)) : std::nan(""); }

void Perplexity::add(std::span<const float> token_nats, int64_t labelled, const std::string& model) {
  for (const float each : token_nats) nats += each;
  tokens += labelled;
  if (!std::isfinite(nats))
    throw Error(model + ": a token's probability is not a number; the weights may be damaged, or the training diverged");
}

void for_each_context(const std::vector<std::vector<int64_t>>& documents, int64_t length,
                      const std::function<void(const DocumentContext&)>& visit) {
  Contexts contexts(documents, length);
  for (DocumentContext context = contexts.next(); !context.ids.empty(); context = contexts.next()) visit(context);
}

Perplexity measure_perplexity(LanguageModel& model, const std::vector<std::vector<int64_t>>& documents, const PerplexityOptions& options,
                              const std::function<bool(int64_t)>& progress, const DocumentSink& sink) {
  Engine engine(model, {.slots = options.batch > 0          ? options.batch
                                 : model.device().is_cuda() ? 64
                                                            : 8,
                        .prefill_tokens = model.device().is_cuda() ? 32768 : 0,
                        .padded_columns = options.padded_columns,
                        .decode = {.steps = Steps::plain}});
  for (const auto& document : documents) {
    const auto size = static_cast<int64_t>(document.size());
    require_positions(model.config(), options.context > 0 ? std::min(options.context, size) : size, options.model + ": a context");
  }
  Contexts contexts(documents, options.context);
  Perplexity sum;
  std::map<int64_t, DocumentContext> active;  // by the number of the sequence
  const auto add = [&] {
    const DocumentContext context = contexts.next();
    if (context.ids.empty()) return false;
    active[engine.add(std::vector<int64_t>(context.ids.begin(), context.ids.end()), {.max_tokens = 0, .scores = true})] = context;
    return true;
  };
  const auto take = [&](int64_t sequence) {
    const DocumentContext& context = active.at(sequence);
    std::vector<float> nats = engine.scores(sequence);
    int64_t labelled = 0;
    for (size_t i = 0; i < nats.size(); ++i) {
      const bool predicted = context.ids[i + 1] != options.unlabelled;
      nats[i] = predicted ? -nats[i] : 0.0F;
      labelled += predicted;
    }
    sum.add(nats, labelled, options.model);
    if (sink) sink(context, nats);
  };
  while (static_cast<int64_t>(active.size()) < 2 * engine.slots() && add()) {}
  bool proceed = true;
  while (proceed && !engine.idle()) {
    for (const Engine::Output& ended : engine.step()) {
      take(ended.sequence);
      engine.remove(ended.sequence);
      active.erase(ended.sequence);
      add();
    }
    proceed = !progress || progress(engine.tokens_read());
  }
  for (const auto& [sequence, context] : active) take(sequence);  // the scored part of unfinished contexts
  return sum;
}

}  // namespace based
