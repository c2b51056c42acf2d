#include "based/eval/perplexity.h"

#include <cmath>

#include "based/models/limits.h"

namespace based {

double Perplexity::value() const { return tokens > 0 ? std::exp(nats / static_cast<double>(tokens)) : std::nan(""); }

Perplexity measure_perplexity(LanguageModel& model, const std::vector<int64_t>& ids, const PerplexityOptions& options,
                              const std::function<bool(int64_t)>& progress) {
  const torch::NoGradGuard no_grad;
  const int64_t count = static_cast<int64_t>(ids.size()), context = options.context > 0 ? options.context : count;
  require_ids(model.config(), ids, "the text");
  require_positions(model.config(), std::min(context, count), "the context");
  const Tensor all = torch::tensor(ids), slot = torch::tensor({int64_t{0}});
  ModelState state = model.make_state(1);
  Perplexity sum;
  int64_t seen = 0;  // tokens of this context that the state holds
  for (int64_t at = 0; at + 1 < count;) {
    if (seen == context) {
      state.zero(slot);
      seen = 0;
    }
    const int64_t length = std::min({options.piece, context - seen, count - at});
    const Tensor hidden = model.prefill(all.narrow(0, at, length), Sequences::equal(1, length), state, slot);
    // The last token of a context predicts nothing: the one after it starts anew.
    const int64_t predicted = std::min(seen + length == context ? length - 1 : length, count - 1 - at);
    if (predicted > 0) {
      const Tensor loss = model.cross_entropy(hidden.narrow(0, 0, predicted), all.narrow(0, at + 1, predicted));
      const double nats = loss.item<double>();
      if (!std::isfinite(nats)) {
        throw Error(options.model + ": the loss of tokens " + std::to_string(at) + " to " + std::to_string(at + length) +
                    " is not finite; the weights may be damaged, or the training diverged");
      }
      sum.nats += nats * static_cast<double>(predicted);
      sum.tokens += predicted;
    }
    at += length;
    seen += length;
    if (progress && !progress(at)) break;
  }
  return sum;
}

}  // namespace based
