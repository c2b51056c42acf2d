#include "based/ops/conv/gated_long_conv_scores.h"

#include <algorithm>

#include "based/kernels/conv/gated_long_conv.h"

namespace based::ops {
namespace {

constexpr int64_t kScoreBlock = 256;  // queries whose scores are in memory together; it does not depend on the rows, so their bits do not

// [rows, heads, length, head_dim] of packed rows.
struct HeadRows {
  int64_t rows, length, heads, head_dim;

  explicit HeadRows(const GatedLongConv& in)
      : rows(in.k.size(0) / in.length), length(in.length), heads(in.filter.size(0)), head_dim(in.k.size(1) / heads) {}
  Tensor split(const Tensor& x) const {
    return x.unflatten(0, {rows, length}).unflatten(2, {heads, head_dim}).transpose(1, 2).contiguous();
  }
  Tensor pack(const Tensor& x) const { return x.transpose(1, 2).reshape({rows * length, heads * head_dim}); }
};

// The queries begin .. begin + count read the keys 0 .. end of their row.
struct ScoreBlock {
  int64_t begin, count, end;

  // T[t, s] of the block, [heads, count, end].
  Tensor weights(const Tensor& filter) const {
    const Tensor taps = filter.narrow(1, 0, std::min(end, filter.size(1)));
    const Tensor reversed = at::constant_pad_nd(taps, {count - 1, end - taps.size(1)}).flip(1);  // the tap end − 1 first
    return reversed.unfold(1, end, 1).flip(1);
  }

  // The sums of [heads, count, end] over the places of equal t − s, added to grad_filter [heads, taps].
  void add_to_taps(const Tensor& sums, const Tensor& grad_filter) const {
    // In lines of end + count − 1 numbers instead of end + count, each line begins one place later than the line before.
    const int64_t width = end + count;
    const Tensor padded = at::constant_pad_nd(sums.flip(2), {0, count}).flatten(1);
    const Tensor by_tap = padded.narrow(1, 0, count * (width - 1)).view({-1, count, width - 1}).sum(1);  // from the tap 1 − count on
    const int64_t taps = std::min(end, grad_filter.size(1));
    grad_filter.narrow(1, 0, taps).add_(by_tap.narrow(1, count - 1, taps));
  }
};

template <class Function>
void each_block(int64_t length, const Function& function) {
  for (int64_t begin = 0; begin < length; begin += kScoreBlock) {
    const int64_t count = std::min(kScoreBlock, length - begin);
    function(ScoreBlock{begin, count, begin + count});
  }
}

}  // namespace

bool has_short_scores(const GatedLongConv& in) { return kernels::pairs_are_less_work(in.length, in.k.size(1) / in.filter.size(0)); }

Tensor gated_long_conv_by_scores(const GatedLongConv& in) {
  const HeadRows rows(in);
  const Tensor q = rows.split(*in.q), k = rows.split(in.k), v = rows.split(*in.v), y = at::empty_like(q);
  each_block(in.length, [&](const ScoreBlock& block) {
    const Tensor weights = block.weights(in.filter).to(q.scalar_type());
    const Tensor scores = at::matmul(q.narrow(2, block.begin, block.count), k.narrow(2, 0, block.end).transpose(2, 3)).mul_(weights);
    y.narrow(2, block.begin, block.count).copy_(at::matmul(scores, v.narrow(2, 0, block.end)));
  });
  return rows.pack(y);
}

Result<GatedLongConvBackward> gated_long_conv_backward_by_scores(const GatedLongConvBackward& in) {
  const GatedLongConv& forward = in.forward;
  const HeadRows rows(forward);
  const Tensor q = rows.split(*forward.q), k = rows.split(forward.k), v = rows.split(*forward.v), grad_y = rows.split(in.grad_y);
  const at::TensorOptions sums = forward.filter.options();
  const Tensor grad_q = at::empty_like(q), grad_k = at::zeros(k.sizes(), sums), grad_v = at::zeros(v.sizes(), sums);
  const Tensor grad_filter = at::zeros_like(forward.filter);
  each_block(forward.length, [&](const ScoreBlock& block) {
    const auto queries = [&](const Tensor& x) { return x.narrow(2, block.begin, block.count); };
    const auto keys = [&](const Tensor& x) { return x.narrow(2, 0, block.end); };
    const Tensor weights = block.weights(forward.filter).to(q.scalar_type());
    const Tensor scores = at::matmul(queries(q), keys(k).transpose(2, 3));
    const Tensor grad_weighted = at::matmul(queries(grad_y), keys(v).transpose(2, 3)), weighted = scores * weights;
    keys(grad_v).add_(at::matmul(weighted.transpose(2, 3), queries(grad_y)));
    block.add_to_taps((grad_weighted * scores).sum(0, /*keepdim=*/false, sums.dtype().toScalarType()), grad_filter);
    const Tensor grad_scores = grad_weighted * weights;
    queries(grad_q).copy_(at::matmul(grad_scores, keys(k)));
    keys(grad_k).add_(at::matmul(grad_scores.transpose(2, 3), queries(q)));
  });
  const auto packed = [&](const Tensor& x) { return rows.pack(x).to(q.scalar_type()); };
  return {packed(grad_k), grad_filter, packed(grad_q), packed(grad_v)};
}

}  // namespace based::ops
