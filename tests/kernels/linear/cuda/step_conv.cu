// The short convolution as a part of the layer before it, in a decode step of several sequences: the same bits as two kernels.
#include "based/kernels/common/device_code.h"
#include "based/kernels/conv/short_conv.h"
#include "based/kernels/linear/linear_step.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
using kernels::Linear;
namespace gpu = kernels::cuda;

struct ConvProblem {
  int64_t rows, width, channels;
  bool with_bias, silu, has_gate = true, has_recent = false;
};

// Slots in another order than the rows; one is left out.
Buffer some_slots(int64_t rows) {
  std::vector<int64_t> slots;
  for (int64_t row = 0; row < rows; ++row) slots.push_back(rows - row);
  return upload(slots);
}

// Words of ShortConv::recent with no input, one, or two; no word of some slots has any.
Buffer some_recent_inputs(int64_t slots, int64_t channels) {
  Buffer recent = random_buffer(slots * channels * 2, DType::bf16, 1, 7);
  std::vector<uint32_t> words(static_cast<size_t>(slots * channels));
  check(cudaMemcpy(words.data(), recent.as(), words.size() * 4, cudaMemcpyDeviceToHost), "recent inputs");
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t missing = static_cast<int64_t>(i) / channels % 3 == 0 ? 2 : i % 3;
    if (missing > 0) words[i] |= kernels::kNoRecentInput;
    if (missing > 1) words[i] |= kernels::kNoRecentInput << 16;
  }
  check(cudaMemcpy(recent.as(), words.data(), words.size() * 4, cudaMemcpyHostToDevice), "recent inputs");
  return recent;
}

void verify_case(Report& report, const ConvProblem& problem) {
  const auto& [rows, width, channels, with_bias, silu, has_gate, has_recent] = problem;
  const std::string name = "convolution in layer " + std::to_string(rows) + " x " + std::to_string(width) + " x " +
                           std::to_string(channels) + (with_bias ? " bias" : "") + (silu ? " silu" : "") + (has_gate ? "" : " no gate") +
                           (has_recent ? " recent" : "");
  if (!gpu::runs_hopper_code()) return report.no_kernel(name);
  const int64_t out = 2 * channels, parts = kernels::joined_norm_parts(width), taps = kernels::convolved_taps(has_gate),
                states = (rows + 1) * channels * (taps - 1);
  const Buffer x = random_buffer(rows * width, DType::bf16, 1, 1), weight = random_buffer(out * width, DType::bf16, 0.03, 2),
               bias = random_buffer(out, DType::bf16, 1, 3), filter = random_buffer(taps * channels, DType::bf16, 1, 4),
               conv_bias = random_buffer(channels, DType::bf16, 1, 5), slots = some_slots(rows);
  std::vector<float> squares;
  for (int64_t i = 0; i < kernels::joined_norm_squares(rows, width); ++i) squares.push_back(40 + static_cast<float>(i % 29));
  const Buffer squares_there = upload_floats(squares);
  const kernels::NormBefore before{squares_there.as<float>(), parts, 1e-5F};
  struct Found {
    std::vector<double> y, state, rest;  // rest: the layer's outputs where these are no gate
  };
  const auto run = [&](bool joined, bool reads_recent) {
    const Buffer layer_y(rows * out * 2), y(rows * channels * 2), state = random_buffer(states, DType::f32, 1, 6);
    const Linear layer{
        x.as(), weight.as(), with_bias ? bias.as() : nullptr, layer_y.as(), rows, width, out, width, width, out, DType::bf16, DType::bf16,
        false,  true};
    kernels::ShortConv conv;
    conv.x = layer_y.as(), conv.gate = has_gate ? layer_y.as<char>() + 2 * channels : nullptr, conv.weight = filter.as();
    conv.bias = with_bias ? conv_bias.as() : nullptr, conv.y = y.as(), conv.state = state.as<float>(), conv.slot = slots.as<int64_t>();
    conv.tokens = conv.rows = rows, conv.channels = channels, conv.x_stride = conv.gate_stride = out, conv.y_stride = channels;
    conv.taps = static_cast<int32_t>(taps), conv.silu = silu, conv.dtype = DType::bf16, conv.state_is_private = true;
    const Buffer recent = some_recent_inputs(rows + 1, channels);
    const auto flush = [&] {
      if (has_recent) check(gpu::short_conv_flush({conv.state, recent.as<uint32_t>(), conv.slot, rows, channels}, {}));
    };
    if (reads_recent) conv.recent = recent.as<uint32_t>();
    if (!kernels::linear_conv_supports(layer, conv, gpu::this_gpu())) report.fail(name + ": not supported");
    if (!reads_recent) flush();
    if (joined) {
      check(gpu::linear_conv_after_norm(layer, conv, before, {}));
    } else {
      check(gpu::linears_after_norm(std::vector<Linear>{layer}, before, {}));
      check(gpu::short_conv_step(conv, {}));
    }
    if (reads_recent) flush();
    check(cudaDeviceSynchronize(), name.c_str());
    Found found{download(y.as(), DType::bf16, rows * channels), download(state.as(), DType::f32, states), {}};
    if (has_gate) return found;
    const std::vector<double> outputs = download(layer_y.as(), DType::bf16, rows * out);
    for (int64_t row = 0; row < rows; ++row)
      found.rest.insert(found.rest.end(), outputs.begin() + row * out + channels, outputs.begin() + (row + 1) * out);
    return found;
  };
  const Found expected = run(false, false);
  const auto different = [](const std::vector<double>& a, const std::vector<double>& b) {
    double count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 0 : 1;
    return count;
  };
  for (const bool joined : {true, false}) {
    if (!joined && !has_recent) continue;
    const Found found = run(joined, has_recent);
    report.expect(name + ", y that differ", different(expected.y, found.y), 0);
    report.expect(name + ", states that differ", different(expected.state, found.state), 0);
    report.expect(name + ", other outputs that differ", different(expected.rest, found.rest), 0);
  }
}

void verify_step_conv(Report& report) {
  for (const bool has_gate : {true, false}) {
    for (const int64_t rows : {2, 5, 16, 17, 33, 64, 100, 128}) verify_case(report, {rows, 1024, 2048, true, true, has_gate});
    for (const int64_t rows : {130, 256}) verify_case(report, {rows, 1024, 2048, false, true, has_gate});
    for (const int64_t rows : {16, 128}) verify_case(report, {rows, 1792, 3584, false, true, has_gate});
    for (const int64_t rows : {3, 40, 128, 200, 512}) verify_case(report, {rows, 264, 136, true, false, has_gate});  // partial tiles
  }
  for (const int64_t rows : {40, 64, 100, 128, 200}) verify_case(report, {rows, 1024, 2048, true, true, true, true});
  for (const int64_t rows : {33, 128, 512}) verify_case(report, {rows, 264, 136, false, false, true, true});
}

const DefineFamily<Report> kStepConv("step_conv", verify_step_conv);

}  // namespace
}  // namespace based::tests
