#include "based/kernels/conv/short_conv.h"

#include <algorithm>

#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/conv/cpu/short_conv_simd.h"

namespace based::kernels::cpu {
namespace {

Status check(const ShortConv& p) {
  if (p.tokens < 0 || p.rows < 0 || p.channels < 0) return {"short_conv: sizes must not be negative"};
  if (p.taps < 1 || p.taps > short_conv_max_taps) return {"short_conv: taps must be 1..128"};
  if (p.channels > 0 && !p.weight) return {"short_conv: weight must be given"};
  if (p.tokens > 0 && p.channels > 0 && !p.x) return {"short_conv: x must be given"};
  if (p.x_bias || p.gate_bias) return {"short_conv: x and the gate must have their biases"};
  return {};
}

Status check_rows(const ShortConv& p) {
  if (p.rows == 0) return {};
  if (!p.row_start) return {"short_conv: row_start must be given"};
  for (int64_t row = 0; row < p.rows; ++row)
    if (p.row_start[row + 1] < p.row_start[row]) return {"short_conv: row_start must not decrease"};
  if (p.row_start[0] < 0 || p.row_start[p.rows] > p.tokens) return {"short_conv: row_start must lie within the tokens"};
  return {};
}

void run(const ShortConv& p, bool step) {
  // Waking a thread costs a few microseconds, the time of about this many multiplications.
  constexpr int64_t worth_a_thread = 64 * 1024;
  int64_t pieces = step ? p.rows : 0;
  for (int64_t row = 0; !step && row < p.rows; ++row)
    pieces += (p.row_start[row + 1] - p.row_start[row] + short_conv_piece - 1) / short_conv_piece;
  if (pieces == 0) return;
  const int64_t cost = std::max<int64_t>(1, p.tokens / pieces * p.channels * (p.taps + 8));
  parallel_for(pieces, std::max<int64_t>(1, worth_a_thread / cost),
               [&](int64_t begin, int64_t end) { BASED_DISPATCH(short_conv_pieces, p, step, begin, end); });
}

}  // namespace

Status short_conv_forward(const ShortConv& p) {
  if (Status status = check(p); !status.ok()) return status;
  if (Status status = check_rows(p); !status.ok()) return status;
  if (p.tokens > 0 && p.channels > 0 && !p.y) return {"short_conv: y must be given"};
  run(p, false);
  return {};
}

Status short_conv_step(const ShortConv& p) {
  if (Status status = check(p); !status.ok()) return status;
  if (p.tokens != p.rows) return {"short_conv_step: a step has one token a row"};
  if (p.rows > 0 && p.channels > 0 && (!p.y || (p.taps > 1 && !p.state))) return {"short_conv_step: y and state must be given"};
  run(p, true);
  return {};
}

Status short_conv_backward(const ShortConvBackward& b) {
  const ShortConv& p = b.forward;
  if (Status status = check(p); !status.ok()) return status;
  if (Status status = check_rows(p); !status.ok()) return status;
  if (p.channels == 0) return {};
  if (!b.grad_weight || (p.tokens > 0 && (!b.grad_y || !b.grad_x))) return {"short_conv: grad_y, grad_x and grad_weight must be given"};
  if ((p.gate != nullptr) != (b.grad_gate != nullptr) && p.tokens > 0) return {"short_conv: grad_gate must be given exactly where gate is"};
  const int64_t blocks = (p.channels + short_conv_backward_block - 1) / short_conv_backward_block;
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    BASED_DISPATCH(short_conv_backward_channels, b, begin * short_conv_backward_block,
                   std::min(p.channels, end * short_conv_backward_block));
  });
  return {};
}

namespace {
const DefineLaunchers<ShortConvLaunchers> kShortConvLaunchers(Device::cpu,
                                                              {.forward = on_cpu<short_conv_forward>,
                                                               .backward_scratch = [](const ShortConvBackward&) { return int64_t{0}; },
                                                               .backward = [](const ShortConvBackward& p, void*,
                                                                              Queue) { return short_conv_backward(p); },
                                                               .step = on_cpu<short_conv_step>,
                                                               .backward_sums = [](const ShortConvBackward&) { return false; },
                                                               .adds_input = false,
                                                               .step_tokens = nullptr,
                                                               .flush = nullptr});
}

}  // namespace based::kernels::cpu
