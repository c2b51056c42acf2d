#include "based/ops/conv/long_conv.h"

#include "based/ops/framework/rows.h"

namespace based::ops {
namespace {

void check(const LongConv& in) {
  constexpr const char* op = "long_conv";
  const auto& [x, filter, cu_seqlens, history, cu_history] = in;
  require(at::isFloatingType(x.scalar_type()), op, "x must be floating, got ", x.scalar_type());
  require_shape(op, "x", x, {-1, -1});
  require_like(op, "filter", filter, x);
  require_shape(op, "filter", filter, {x.size(1), -1});
  require(filter.size(1) >= 1, op, "taps must be at least 1, got ", filter.size(1));
  require_row_starts(op, "cu_seqlens", cu_seqlens);
  require(history.has_value() == cu_history.has_value(), op, "history and cu_history must be given together");
  if (!history) return;
  require_like(op, "history", *history, x);
  require_shape(op, "history", *history, {-1, x.size(1)});
  require_type(op, "cu_history", *cu_history, at::kLong);
  require_shape(op, "cu_history", *cu_history, cu_seqlens.sizes());
}

// The last `length` outputs for x [rows, steps, channels] and filter [channels, taps], taps ≤ steps.
using LongConvForm = Tensor (*)(const Tensor& x, const Tensor& filter, int64_t length);

Tensor direct_sum(const Tensor& x, const Tensor& filter, int64_t length) {
  const int64_t first = x.size(1) - length;
  const Tensor padded = at::constant_pad_nd(x, {0, 0, filter.size(1) - 1, 0});
  Tensor y = at::zeros({x.size(0), length, x.size(2)}, x.options());
  for (int64_t tap = 0; tap < filter.size(1); ++tap)
    y = y + padded.narrow(1, first + filter.size(1) - 1 - tap, length) * filter.select(1, tap);
  return y;
}

// The smallest 2^a or 3·2^a that is at least n. Every FFT library is fast for such sizes.
int64_t fast_fft_size(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power >= 4 && power / 4 * 3 >= n ? power / 4 * 3 : power;
}

Tensor by_fft(const Tensor& x, const Tensor& filter, int64_t length) {
  const int64_t steps = x.size(1), size = fast_fft_size(steps + filter.size(1) - 1);  // room for the tail, so that nothing wraps round
  // Time is the last dimension, so that each transform reads a contiguous line.
  const Tensor spectrum = at::fft_rfft(x.transpose(1, 2), size) * at::fft_rfft(filter, size);
  return at::fft_irfft(spectrum, size).narrow(-1, steps - length, length).transpose(1, 2);
}

template <LongConvForm kForm>
Tensor over_rows(const LongConv& in) {
  constexpr const char* op = "long_conv";
  const auto& [x, filter, cu_seqlens, history, cu_history] = in;
  check(in);
  const std::vector<int64_t> starts = row_starts(op, "cu_seqlens", cu_seqlens, x.size(0));
  const std::vector<int64_t> before = history ? row_starts(op, "cu_history", *cu_history, history->size(0)) : std::vector<int64_t>();
  const at::ScalarType type = sum_type(x);
  std::vector<Tensor> pieces;
  for (const Run& run : equal_runs(starts, before)) {
    Tensor inputs = tokens_of(x, run).to(type);
    if (history) inputs = at::cat({other_tokens_of(*history, run).to(type), inputs}, 1);
    if (run.length == 0) continue;
    const int64_t taps = std::min(filter.size(1), inputs.size(1));
    pieces.push_back(kForm(inputs, filter.narrow(1, 0, taps).to(type), run.length).reshape({run.rows * run.length, x.size(1)}));
  }
  return join(pieces, x.sizes(), x.options()).to(x.scalar_type()).contiguous();
}

Tensor convolve_meta(const LongConv& in) {
  check(in);
  return at::empty(in.x.sizes(), in.x.options());
}

// ATen's FFT supports every type and device and has its own gradient.
TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<LongConv>(m).composite<over_rows<by_fft>>().meta<convolve_meta>().named_reference<over_rows<direct_sum>>();
}

}  // namespace

Tensor long_conv_of_batch(const Tensor& x, const Tensor& filter) {
  const at::ScalarType type = sum_type(x);
  const int64_t taps = std::min(filter.size(1), x.size(1));
  return by_fft(x.to(type), filter.narrow(1, 0, taps).to(type), x.size(1)).to(x.scalar_type());
}

Tensor long_conv_reference(const Tensor& x, const Tensor& filter, const Tensor& cu_seqlens, const OptionalTensor& history,
                           const OptionalTensor& cu_history) {
  return over_rows<direct_sum>({x, filter, cu_seqlens, history, cu_history});
}

Tensor long_conv(const Tensor& x, const Tensor& filter, const Tensor& cu_seqlens, const OptionalTensor& history,
                 const OptionalTensor& cu_history) {
  return call(LongConv{x, filter, cu_seqlens, history, cu_history});
}

}  // namespace based::ops
