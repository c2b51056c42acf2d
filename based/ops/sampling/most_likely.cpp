#include "based/ops/sampling/most_likely.h"

#include "based/ops/linear/linear.h"

namespace based::ops {
namespace {

constexpr int64_t kMostLikelyChunkLogitBytes = int64_t{64} << 20;

void check(const MostLikely& in) {
  constexpr const char* op = "most_likely";
  require(at::isFloatingType(in.hidden.scalar_type()), op, "hidden must be floating, got ", in.hidden.scalar_type());
  require_shape(op, "hidden", in.hidden, {-1, -1});
  require_like(op, "weight", in.weight, in.hidden);
  require_shape(op, "weight", in.weight, {-1, in.hidden.size(1)});
  require(in.vocab_size >= 1 && in.vocab_size <= in.weight.size(0), op, "vocab_size must be 1..", in.weight.size(0), ", got ",
          in.vocab_size);
}

Tensor by_chunks(const MostLikely& in) {
  check(in);
  const int64_t rows = in.hidden.size(0),
                chunk = std::max<int64_t>(kMostLikelyChunkLogitBytes / (in.vocab_size * in.hidden.element_size()), 64);
  const Tensor weight = in.weight.narrow(0, 0, in.vocab_size), words = at::empty({rows}, in.hidden.options().dtype(at::kLong));
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t size = std::min(chunk, rows - begin);
    const auto [best, word] = ops::linear(in.hidden.narrow(0, begin, size), weight).max(1);
    words.narrow(0, begin, size).copy_(word.masked_fill(best.isfinite().logical_not(), -1));
  }
  return words;
}

Tensor words_meta(const MostLikely& in) {
  check(in);
  return at::empty({in.hidden.size(0)}, in.hidden.options().dtype(at::kLong));
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) { define<MostLikely>(m).reference<by_chunks>().meta<words_meta>().without_gradient(); }

}  // namespace

Tensor most_likely(const Tensor& hidden, const Tensor& weight, int64_t vocab_size) { return call(MostLikely{hidden, weight, vocab_size}); }

}  // namespace based::ops
