#include "based/ops/framework/arguments.h"

#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "based/core/log.h"

namespace based::ops {

namespace {

std::vector<int64_t> read_offsets(const Tensor& offsets) {
  const Tensor here = offsets.to(at::kCPU).contiguous();
  const int64_t* data = here.const_data_ptr<int64_t>();
  return {data, data + here.numel()};
}

// Values of offsets on a device, until their memory is freed or written. A second call with the same offsets does not wait for the device,
// so it may run while a graph is recorded, where waiting is not allowed.
class KnownOffsets {
 public:
  std::vector<int64_t> values(const Tensor& offsets) {
    const c10::VariableVersion& version = offsets.unsafeGetTensorImpl()->version_counter();
    if (offsets.is_cpu() || !version.enabled() || !offsets.is_contiguous()) return read_offsets(offsets);
    const std::lock_guard lock(mutex_);
    const Key key{offsets.storage().unsafeGetStorageImpl(), offsets.storage_offset(), offsets.numel()};
    const auto found = known_.find(key);
    if (found != known_.end() && !found->second.memory.expired() && found->second.version == version.current_version())
      return found->second.values;
    for (auto it = known_.begin(); it != known_.end();) it = it->second.memory.expired() ? known_.erase(it) : std::next(it);
    Entry entry{offsets.storage().getWeakStorageImpl(), version.current_version(), read_offsets(offsets)};
    return known_.insert_or_assign(key, std::move(entry)).first->second.values;
  }

 private:
  using Key = std::tuple<const c10::StorageImpl*, int64_t, int64_t>;  // memory, first element, elements
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    uint32_t version;
    std::vector<int64_t> values;
  };
  std::mutex mutex_;
  std::map<Key, Entry> known_;
};

}  // namespace

std::vector<int64_t> row_starts(const char* op, const char* name, const Tensor& cu_seqlens, int64_t tokens) {
  static KnownOffsets known;
  std::vector<int64_t> starts = known.values(cu_seqlens);
  require(starts.front() == 0, op, name, " must start at 0, got ", starts.front());
  for (size_t i = 1; i < starts.size(); ++i)
    require(starts[i] >= starts[i - 1], op, name, " must not decrease, got ", starts[i - 1], " then ", starts[i]);
  require(starts.back() == tokens, op, name, " must end at the number of tokens, ", tokens, ", got ", starts.back());
  return starts;
}

void check_row_starts(const char* op, const char* name, const Tensor& cu_seqlens, int64_t tokens) {
  if (cu_seqlens.is_cpu()) row_starts(op, name, cu_seqlens, tokens);
}

void require_slots(const char* op, const Tensor& slots, int64_t rows, int64_t state_slots) {
  require_shape(op, "slots", slots, {rows});
  require_type(op, "slots", slots, at::kLong);
  if (!slots.is_cpu()) return;  // reading values would wait for the device
  std::vector<bool> seen(state_slots);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t slot = slots.const_data_ptr<int64_t>()[i * slots.stride(0)];
    require(slot >= 0 && slot < state_slots, op, "slots must be 0..", state_slots - 1, ", got ", slot);
    require(!seen[slot], op, "slots must differ, got ", slot, " twice");
    seen[slot] = true;
  }
}

void require_state_slots(const char* op, std::initializer_list<Tensor> state, const Tensor& slots, int64_t rows) {
  for (const Tensor& tensor : state) require(tensor.is_contiguous(), op, "the state must be contiguous");
  require_slots(op, slots, rows, state.begin()->size(0));
}

bool uses_kernel(const char* op, const Tensor& tensor, bool supported) {
  if (has_kernel(tensor) && supported) return true;
  if (!tensor.is_cuda()) return false;
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(op).second) {
    std::ostringstream message;
    message << op << ": no kernel for " << tensor.scalar_type() << ' ' << tensor.sizes() << " on " << tensor.device()
            << "; the reference runs, which is slow";
    log_warning(message.str());
  }
  return false;
}

void require_ok(kernels::Status status) {
  if (!status.ok()) throw Error(status.what);
}

Tensor with_unit_columns(const Tensor& matrix) { return matrix.stride(1) == 1 ? matrix : matrix.contiguous(); }

Tensor with_packed_heads(const Tensor& x) {
  const bool packed = x.stride(2) == 1 && (x.size(1) == 1 || x.stride(1) == x.size(2));
  return packed ? x : x.contiguous();
}

bool wants_gradient(std::initializer_list<Tensor> inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}

void require_no_gradient(const char* op, std::initializer_list<Tensor> inputs) {
  require(!wants_gradient(inputs), op, "works in place and has no gradient; turn gradients off around it");
}

}  // namespace based::ops
