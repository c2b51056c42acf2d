// A step as the operators that it calls: what each reads and writes, by its schema, and the nodes of a recording that it made.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "based/decode/span.h"
#include "based/decode/step_kernel.h"
#include "based/ops/torch.h"

namespace based::decode {

struct Call {
  std::string name;                          // "based::linear"
  std::vector<size_t> inner;                 // the calls that it made in turn
  Spans reads, writes;                       // writes are of arguments that the schema says are written, and of what the call has made
  bool makes = false;                        // at least one result is memory of its own
  std::unique_ptr<StepKernel> kernel;        // what it is on a GPU; null: nothing that is known here
  std::string why;                           // … and why
  void *before = nullptr, *after = nullptr;  // the recording's last node before it and at its end
};

// While one lives, it listens to the operators that this thread calls. One a thread.
class Trace {
 public:
  // The last node of what the current stream records; null: nothing, or nothing is recorded.
  using LastNode = void* (*)();
  Trace(const Gpu& gpu, LastNode last_node);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void stop();  // what is called later is not heard; throws what a lowering has thrown
  std::vector<Call>& calls() { return calls_; }
  const std::vector<size_t>& outermost() const { return outermost_; }
  // Whether memory was there before the step.
  bool is_external(const Span& span) const { return span.storage >= 0 && external_[static_cast<size_t>(span.storage)]; }

  Span span_of(const at::Tensor& tensor);  // of all that its sizes and strides reach

 private:
  friend struct Listener;
  size_t begin(const at::RecordFunction& function);
  void end(size_t call, const std::vector<c10::IValue>& inputs, const at::RecordFunction& function);

  Gpu gpu_;
  LastNode last_node_;
  std::vector<Call> calls_;
  std::vector<size_t> outermost_, open_;
  // A storage's object lives on behind a weak reference after its memory is gone, so that no later one has its address.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  std::vector<bool> external_;
  std::unordered_map<const c10::StorageImpl*, int64_t> number_;
  at::CallbackHandle handle_ = 0;
  bool listens_ = true, results_ = false;
  std::exception_ptr error_;
};

}  // namespace based::decode
