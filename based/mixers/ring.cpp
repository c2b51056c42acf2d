#include "based/mixers/ring.h"

#include <algorithm>
#include <vector>

#include "based/core/error.h"
#include "based/ops/transfer.h"

namespace based {
namespace {

// Where the rows of (earlier, new) steps lie in cat(all earlier, all new).
std::vector<int64_t> join_order(const std::vector<int64_t>& earlier_starts, const std::vector<int64_t>& fresh_starts) {
  std::vector<int64_t> order;
  if (earlier_starts.back() == 0) return order;
  order.reserve(earlier_starts.back() + fresh_starts.back());
  for (size_t row = 0; row + 1 < fresh_starts.size(); ++row) {
    for (int64_t i = earlier_starts[row]; i < earlier_starts[row + 1]; ++i) order.push_back(i);
    for (int64_t i = fresh_starts[row]; i < fresh_starts[row + 1]; ++i) order.push_back(earlier_starts.back() + i);
  }
  return order;
}

// `place(slot, p)` is the entry of step p.
template <class Place>
RingPlan plan(const Tensor& position, const Sequences& rows, const Slots& slots, int64_t capacity, int64_t history, Place&& place) {
  const torch::Device device = position.device();
  const Tensor slots_host = slots.to(torch::kCPU).contiguous();
  const Tensor position_host = position.index_select(0, slots).to(torch::kCPU).contiguous();
  const int64_t* slot = slots_host.const_data_ptr<int64_t>();
  const int64_t* written_so_far = position_host.const_data_ptr<int64_t>();

  std::vector<int64_t> history_starts = {0}, joined_starts = {0};
  std::vector<int64_t> read, kept, written;
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const int64_t at = written_so_far[row], length = rows.length(row);
    const int64_t earlier = length == 0 ? 0 : std::min(at, history);
    for (int64_t p = at - earlier; p < at; ++p) read.push_back(place(slot[row], p));
    for (int64_t i = std::max<int64_t>(0, length - capacity); i < length; ++i) {
      kept.push_back(rows.starts()[row] + i);
      written.push_back(place(slot[row], at + i));
    }
    history_starts.push_back(history_starts.back() + earlier);
    joined_starts.push_back(joined_starts.back() + earlier + length);
  }
  const auto index = [device](const std::vector<int64_t>& values) { return ops::to_device(torch::tensor(values, torch::kInt64), device); };
  return {Sequences::packed(history_starts, history_starts.back(), device),
          Sequences::packed(joined_starts, joined_starts.back(), device),
          index(read),
          index(join_order(history_starts, rows.starts())),
          index(kept),
          index(written)};
}

// The plan of an earlier layer of the pass, or a new one. `page_tokens`: 0 for rings.
template <class Make>
RingPlan plan_once(const Sequences& rows, int64_t capacity, int64_t history, int64_t page_tokens, Make&& make) {
  if (rows.pass() == nullptr) return make();
  auto& known = rows.pass()->plans[{capacity, history, page_tokens}];
  if (!known) known = std::make_shared<const RingPlan>(make());
  return *known;
}

}  // namespace

RingPlan plan_ring(const Tensor& position, const Sequences& rows, const Slots& slots, int64_t capacity, int64_t history) {
  return plan_once(rows, capacity, history, 0, [&] {
    return plan(position, rows, slots, capacity, history, [capacity](int64_t slot, int64_t p) { return slot * capacity + p % capacity; });
  });
}

RingPlan plan_pages(const Tensor& position, const Sequences& rows, const Slots& slots, const StatePages& pages) {
  const int64_t slot_pages = pages.table.size(1), capacity = slot_pages * pages.tokens;
  return plan_once(rows, capacity, capacity, pages.tokens, [&] {
    const Tensor table_host = pages.table.to(torch::kCPU).contiguous();
    const int64_t* table = table_host.const_data_ptr<int64_t>();
    return plan(position, rows, slots, capacity, capacity, [&](int64_t slot, int64_t p) {
      const int64_t page = p < capacity ? table[slot * slot_pages + p / pages.tokens] : -1;
      if (page < 0) throw Error("state: slot " + std::to_string(slot) + " has no page for time step " + std::to_string(p));
      return page * pages.tokens + p % pages.tokens;
    });
  });
}

Tensor read_ring(const Tensor& ring, const RingPlan& plan) { return ring.flatten(0, 1).index_select(0, plan.read); }

Tensor join_history(const Tensor& earlier, const Tensor& fresh, const RingPlan& plan) {
  if (earlier.size(0) == 0) return fresh;
  return torch::cat({earlier, fresh.to(earlier.scalar_type())}).index_select(0, plan.order);
}

void write_ring(Tensor& ring, const Tensor& fresh, const RingPlan& plan) {
  const Tensor after = write_rows(ring.flatten(0, 1), plan.written, fresh.index_select(0, plan.kept));
  if (torch::GradMode::is_enabled()) ring = after.view_as(ring);
}

}  // namespace based
