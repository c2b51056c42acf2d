#include "based/mixers/kit/long_filter.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "based/core/error.h"
#include "based/mixers/kit/rounds.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/mixers/kit/step_history.h"
#include "based/ops/conv/long_conv.h"
#include "based/ops/framework/arguments.h"

namespace based {

Tensor NetworkFilter::taps(int64_t count) const {
  if (at::GradMode::is_enabled()) return make(count);
  return cache_.get(*this, [this] { return make(size()); }).narrow(1, 0, count);
}

Tensor position_features(int64_t taps, int64_t size) {
  const int64_t bands = (size - 1) / 2;
  const auto options = torch::dtype(torch::kFloat64).device(parameter_device());
  const Tensor t = torch::arange(taps, options).unsqueeze(1);
  const Tensor angle =
      t * (2 * std::numbers::pi / static_cast<double>(taps)) * torch::linspace(1e-4, static_cast<double>(bands - 1), bands, options);
  return torch::cat({t / std::max<double>(1, static_cast<double>(taps - 1)), angle.cos(), -angle.sin()}, 1);
}

void check_network(const char* mixer, const char* taps_name, int64_t taps, const char* width_name, int64_t width) {
  constexpr int64_t limit = int64_t{1} << 26;  // 512 MiB in fp64
  if (taps <= limit / width) return;
  throw UsageError(std::string(mixer) + ": an implicit filter may have " + taps_name + " · " + width_name + " up to " +
                   std::to_string(limit) + ", got " + std::to_string(taps) + " · " + std::to_string(width) + "; make one of them smaller");
}

double long_convolution_flops(int64_t tokens) { return 10 * std::log2(2 * static_cast<double>(tokens)); }

Tensor widened(const Tensor& weight) { return weight.to(ops::sum_type(weight)); }

Tensor widened_linear(const Projection& layer, const Tensor& x) {
  return torch::linear(x, widened(layer.weight()), layer.bias().defined() ? widened(layer.bias()) : Tensor());
}

Tensor LongConvolution::forward(const Tensor& x, const Pass& pass) const {
  const int64_t count = std::clamp<int64_t>(pass.rows().max_length(), 1, filter.size());
  const Tensor taps = filter.taps(count).narrow(0, first_channel, x.size(1));
  return ops::long_conv(x, taps.to(x.scalar_type()), pass.cu_seqlens());
}

Tensor LongConvolution::prefill(const Tensor& x, MixerState& state, const std::string& name, const Pass& pass) const {
  StepHistory history(state, pass, name);
  const Tensor earlier = history.advance(name, x);
  const Tensor taps = filter.taps(filter.size()).narrow(0, first_channel, x.size(1));
  return ops::long_conv(x, taps.to(x.scalar_type()), pass.cu_seqlens(), earlier, history.earlier_cu_seqlens());
}

// One slot at a time: ATen would split a sum over several rows depending on their number, and a row's bits would depend on the others.
Tensor LongConvolution::step(const Tensor& x, const Tensor& ring, const Pass& pass) const {
  if (!pass.rounds().empty()) {
    const auto convolve = [&](const Pass& round, const Tensor& rows) { return step(rows, ring, round); };
    return step_in_rounds(pass, {ring}, convolve, x);
  }
  const std::vector<int64_t>&seen = pass.seen_on_host(), &slots = pass.slots_on_host();
  const Tensor taps = filter.taps(filter.size()).narrow(0, first_channel, x.size(1)).t();  // [size, channels]
  Tensor y = torch::empty_like(x);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const int64_t position = seen[row], count = std::min(position + 1, filter.size());
    const Tensor inputs = ring.select(0, slots[row]);
    inputs[position % filter.size()].copy_(x[row]);
    const Tensor steps = torch::remainder(position - torch::arange(count, pass.slots().options()), filter.size());
    y[row].copy_((inputs.index_select(0, steps) * taps.narrow(0, 0, count)).sum(0));
  }
  return y;
}

}  // namespace based
