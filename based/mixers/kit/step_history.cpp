#include "based/mixers/kit/step_history.h"

#include <algorithm>
#include <vector>

#include "based/core/error.h"
#include "based/ops/framework/rows.h"
#include "based/runtime/transfer.h"

namespace based {

// The indices by which one pass reads and writes tensors of the same capacity, computed on the host.
struct StepHistoryPlan {
  Sequences earlier;  // rows of earlier steps only
  Sequences joined;   // rows of earlier steps followed by the row's own
  // `read` and `written` index the flattened tensor: slot·capacity + p mod capacity, or page·page size + offset in a pool.
  Tensor read;     // int64 [earlier.tokens()]: the earlier steps
  Tensor order;    // int64 [joined.tokens()]: indices into cat(earlier steps, new steps); empty if there are no earlier steps
  Tensor kept;     // int64: the new steps to be stored, the last min(length, capacity) of each row
  Tensor written;  // int64: the destination of each step of `kept`
};

namespace {

// For rows of earlier steps followed by new ones, the index of each step in cat(all earlier, all new).
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

// `place(slot, p)` returns the index of step p in the flattened tensor.
template <class Place>
std::shared_ptr<const StepHistoryPlan> make_plan(const Pass& pass, int64_t capacity, int64_t most_earlier, Place&& place) {
  const Sequences& rows = pass.rows();
  const torch::Device device = pass.slots().device();
  std::vector<int64_t> earlier_starts = {0}, joined_starts = {0};
  std::vector<int64_t> read, kept, written;
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const int64_t slot = pass.slots_on_host()[row], seen = pass.seen_on_host()[row], length = rows.length(row);
    const int64_t earlier = length == 0 ? 0 : std::min(seen, most_earlier);
    for (int64_t p = seen - earlier; p < seen; ++p) read.push_back(place(slot, p));
    for (int64_t i = std::max<int64_t>(0, length - capacity); i < length; ++i) {
      kept.push_back(rows.starts()[row] + i);
      written.push_back(place(slot, seen + i));
    }
    earlier_starts.push_back(earlier_starts.back() + earlier);
    joined_starts.push_back(joined_starts.back() + earlier + length);
  }
  const auto index = [device](const std::vector<int64_t>& values) {
    return runtime::to_device(torch::tensor(values, torch::kInt64), device);
  };
  return std::make_shared<const StepHistoryPlan>(StepHistoryPlan{
      Sequences::packed(earlier_starts, earlier_starts.back(), device), Sequences::packed(joined_starts, joined_starts.back(), device),
      index(read), index(join_order(earlier_starts, rows.starts())), index(kept), index(written)});
}

std::shared_ptr<const StepHistoryPlan> plan_ring(const Pass& pass, int64_t capacity, int64_t most_earlier) {
  return pass.plan({capacity, most_earlier, 0}, [&] {
    return make_plan(pass, capacity, most_earlier, [capacity](int64_t slot, int64_t p) { return slot * capacity + p % capacity; });
  });
}

std::shared_ptr<const StepHistoryPlan> plan_pages(const Pass& pass, const StatePages& pages) {
  const int64_t slot_pages = pages.table.size(1), capacity = slot_pages * pages.tokens;
  return pass.plan({capacity, capacity, pages.tokens}, [&] {
    const Tensor table_host = pages.table.to(torch::kCPU).contiguous();
    const int64_t* table = table_host.const_data_ptr<int64_t>();
    return make_plan(pass, capacity, capacity, [&](int64_t slot, int64_t p) {
      const int64_t page = p < capacity ? table[slot * slot_pages + p / pages.tokens] : -1;
      if (page < 0) throw Error("state: slot " + std::to_string(slot) + " has no page for time step " + std::to_string(p));
      return page * pages.tokens + p % pages.tokens;
    });
  });
}

void make_room(MixerState& state, const Pass& pass) {
  if (state.grows() && !state.paged()) state.grow(pass.longest());
}

}  // namespace

StepHistory::StepHistory(MixerState& state, const Pass& pass, const std::string& name) : state_(state) {
  make_room(state, pass);
  const bool grows = state.grows(name);
  const int64_t capacity = state[name].size(1);
  plan_ = grows && state.paged() ? plan_pages(pass, state.pages()) : plan_ring(pass, capacity, grows ? capacity : capacity - 1);
}

const Tensor& StepHistory::earlier_cu_seqlens() const { return plan_->earlier.cu_seqlens(); }
const Tensor& StepHistory::joined_cu_seqlens() const { return plan_->joined.cu_seqlens(); }

Tensor StepHistory::advance(const std::string& name, const Tensor& fresh) {
  Tensor& value = state_[name];
  Tensor flat = value.flatten(0, 1);
  const Tensor earlier = flat.index_select(0, plan_->read);
  ops::write_rows(flat, plan_->written, fresh.index_select(0, plan_->kept));
  if (!flat.is_alias_of(value)) value = flat.view_as(value);
  return earlier;
}

Tensor StepHistory::extend(const std::string& name, const Tensor& fresh) {
  const Tensor earlier = advance(name, fresh);
  if (earlier.size(0) == 0) return fresh;
  return torch::cat({earlier, fresh.to(earlier.scalar_type())}).index_select(0, plan_->order);
}

ops::AttentionCache attention_cache(MixerState& state, const Pass& pass) {
  make_room(state, pass);
  return {state["k"], state["v"], state.grows("k") ? state.pages().table : Tensor()};
}

}  // namespace based
