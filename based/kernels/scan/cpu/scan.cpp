#include "based/kernels/scan/scan.h"

#include <algorithm>

#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/scan/cpu/simd.h"

namespace based::kernels::cpu {
namespace {

Status check(const SelectiveScan& p) {
  if (p.tokens < 0 || p.rows < 0 || p.channels < 0) return {"selective_scan: sizes must not be negative"};
  if (p.state_size < 1 || p.state_size > kSelectiveScanStates) return {"selective_scan: state_size must be 1..256"};
  if (p.groups < 1 || p.channels % p.groups != 0) return {"selective_scan: channels must be a multiple of groups"};
  if (p.channels > 0 && !p.A_log) return {"selective_scan: A_log must be given"};
  if (p.tokens > 0 && p.channels > 0 && (!p.x || !p.dt || !p.B || !p.C)) return {"selective_scan: x, dt, B and C must be given"};
  return {};
}

Status check_rows(const SelectiveScan& p) {
  if (p.rows == 0) return {};
  if (!p.row_start) return {"selective_scan: row_start must be given"};
  for (int64_t row = 0; row < p.rows; ++row)
    if (p.row_start[row + 1] < p.row_start[row]) return {"selective_scan: row_start must not decrease"};
  if (p.row_start[0] != 0 || p.row_start[p.rows] != p.tokens) return {"selective_scan: row_start must go from 0 to the tokens"};
  return {};
}

// Divides the work into blocks of channels times ranges of rows. The division does not depend on the number of threads.
class WorkItems {
 public:
  // Minimum number of tokens per range of rows: setting up a work item costs about as much as one token.
  static constexpr int64_t min_range_tokens = 64;

  WorkItems(const SelectiveScan& p, bool step, int64_t max_ranges) : p_(p), step_(step), group_channels_(p.channels / p.groups) {
    group_blocks_ = (group_channels_ + scan_block - 1) / scan_block;
    ranges_ = std::clamp<int64_t>(p.tokens / min_range_tokens, 1, std::max<int64_t>(1, std::min(p.rows, max_ranges)));
  }
  int64_t blocks() const { return p_.groups * group_blocks_; }
  int64_t ranges() const { return ranges_; }
  int64_t count() const { return blocks() * ranges_; }
  ScanPart operator[](int64_t item) const {
    const int64_t number = item / ranges_, range = item % ranges_, group = number / group_blocks_;
    const int64_t within = number % group_blocks_ * scan_block;
    return {{group, group * group_channels_ + within, std::min(scan_block, group_channels_ - within), number},
            first_row(range),
            first_row(range + 1),
            range};
  }

 private:
  int64_t first_row(int64_t range) const {
    if (range == 0 || range == ranges_) return range == 0 ? 0 : p_.rows;
    const int64_t token = p_.tokens * range / ranges_;
    return step_ ? token : std::lower_bound(p_.row_start, p_.row_start + p_.rows, token) - p_.row_start;
  }

  const SelectiveScan& p_;
  bool step_;
  int64_t group_channels_, group_blocks_ = 0, ranges_ = 1;
};

void run(const SelectiveScan& p, bool step) {
  // Waking a thread costs a few microseconds, the time in which one thread advances about this many state elements by one token.
  constexpr int64_t worth_a_thread = 16 * 1024;
  if (p.channels == 0 || p.rows == 0) return;
  const WorkItems items(p, step, 64);
  if (p.tokens * p.channels * p.state_size <= worth_a_thread) {
    for (int64_t item = 0; item < items.count(); ++item) BASED_DISPATCH(selective_scan_part, p, items[item], step);
    return;
  }
  parallel_items(items.count(), [&](int64_t item, int64_t) { BASED_DISPATCH(selective_scan_part, p, items[item], step); });
}

// The work items of a backward. More row ranges would need more memory for partial sums.
WorkItems backward_items(const SelectiveScanBackward& b) { return {b.forward, false, 8}; }

// Sizes of the parts of the scratch, in floats. Each part starts on a cache line.
struct ScratchLayout {
  static int64_t whole_lines(int64_t floats) { return whole_cache_lines(floats * 4) / 4; }

  int64_t token_sums, channel_sums, threads, thread_floats;  // `threads` is a count
  explicit ScratchLayout(const SelectiveScanBackward& b, const WorkItems& items) {
    const SelectiveScan& p = b.forward;
    token_sums = whole_lines(items.blocks() * 2 * p.tokens * p.state_size);
    channel_sums = whole_lines(items.ranges() * p.channels * (p.state_size + 2));
    threads = std::min<int64_t>(items.count(), max_threads());
    thread_floats = whole_lines(scan_thread_floats(p.state_size));
  }
  int64_t bytes() const { return (token_sums + channel_sums + threads * thread_floats) * int64_t{sizeof(float)} + cache_line; }
};

// Adds up the gradients of A_log, D and dt_bias over all row ranges, for channels begin .. end.
void sum_channels(const SelectiveScanBackward& b, const float* sums, int64_t ranges, int64_t begin, int64_t end) {
  const int64_t size = b.forward.state_size, range_size = b.forward.channels * (size + 2);
  for (int64_t channel = begin; channel < end; ++channel) {
    const float* first = sums + channel * (size + 2);
    for (int64_t s = 0; s < size + 2; ++s) {
      float sum = 0;
      for (int64_t range = 0; range < ranges; ++range) sum += first[range * range_size + s];
      if (s < size) b.grad_A_log[channel * size + s] = sum;
      if (s == size && b.grad_D) b.grad_D[channel] = sum;
      if (s > size && b.grad_dt_bias) b.grad_dt_bias[channel] = sum;
    }
  }
}

}  // namespace

Status selective_scan_forward(const SelectiveScan& p) {
  if (Status status = check(p); !status.ok()) return status;
  if (Status status = check_rows(p); !status.ok()) return status;
  if (p.tokens > 0 && p.channels > 0 && !p.y) return {"selective_scan: y must be given"};
  run(p, false);
  return {};
}

Status selective_scan_step(const SelectiveScan& p) {
  if (Status status = check(p); !status.ok()) return status;
  if (p.tokens != p.rows) return {"selective_scan_step: a step has one token a row"};
  if (p.rows > 0 && p.channels > 0 && (!p.y || !p.state)) return {"selective_scan_step: y and state must be given"};
  run(p, true);
  return {};
}

int64_t selective_scan_backward_scratch(const SelectiveScanBackward& b) {
  if (!check(b.forward).ok() || !check_rows(b.forward).ok()) return 0;
  return ScratchLayout(b, backward_items(b)).bytes();
}

Status selective_scan_backward(const SelectiveScanBackward& b, void* scratch) {
  const SelectiveScan& p = b.forward;
  if (Status status = check(p); !status.ok()) return status;
  if (Status status = check_rows(p); !status.ok()) return status;
  const bool has_numbers = p.tokens > 0 && p.channels > 0;
  if (p.channels > 0 && !b.grad_A_log) return {"selective_scan_backward: grad_A_log must be given"};
  if (p.tokens > 0 && (!b.grad_B || !b.grad_C)) return {"selective_scan_backward: grad_B and grad_C must be given"};
  if (has_numbers && (!p.chunk_states || !b.grad_y || !b.grad_x || !b.grad_dt))
    return {"selective_scan_backward: chunk_states, grad_y, grad_x and grad_dt must be given"};
  if (has_numbers && (p.z != nullptr) != (b.grad_z != nullptr)) return {"selective_scan_backward: grad_z must be given exactly where z is"};
  const WorkItems items = backward_items(b);
  const ScratchLayout layout(b, items);
  auto* tokens = reinterpret_cast<float*>(next_cache_line(scratch));
  float *channels = tokens + layout.token_sums, *threads = channels + layout.channel_sums;
  parallel_items(items.count(), [&](int64_t item, int64_t thread) {
    BASED_DISPATCH(selective_scan_backward_part, b, items[item], ScanSums{tokens, channels, threads + thread * layout.thread_floats});
  });
  parallel_for(p.tokens, 256, [&](int64_t begin, int64_t end) { BASED_DISPATCH(selective_scan_sum_tokens, b, tokens, begin, end); });
  parallel_for(p.channels, 256, [&](int64_t begin, int64_t end) { sum_channels(b, channels, items.ranges(), begin, end); });
  return {};
}

namespace {
const DefineLaunchers<SelectiveScanLaunchers> kSelectiveScanLaunchers(Device::cpu,
                                                                      {.forward_scratch = [](const SelectiveScan&) { return int64_t{0}; },
                                                                       .forward = [](const SelectiveScan& p, void*,
                                                                                     Queue) { return selective_scan_forward(p); },
                                                                       .backward_scratch = selective_scan_backward_scratch,
                                                                       .backward = on_cpu<selective_scan_backward>,
                                                                       .step = on_cpu<selective_scan_step>,
                                                                       .chunk = kSelectiveScanChunk});
}

}  // namespace based::kernels::cpu
