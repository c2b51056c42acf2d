// A step as the list of operators that it calls. Each has the memory that it reads and writes, by its schema, and its nodes of the
// recording.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "based/decode/span.h"
#include "based/decode/step_kernel.h"
#include "based/runtime/torch.h"

namespace based::decode {

struct Call {
  std::string name;                          // as plans print it: "based::linear"
  std::vector<size_t> inner;                 // the calls that it made itself
  Spans reads, writes;                       // writes: the arguments that the schema marks as written, and new results
  bool has_new_results = false;              // whether a result has memory of its own
  std::unique_ptr<StepKernel> kernel;        // its kernel in a plan; null: none is known
  std::string why;                           // the reason for null
  void *before = nullptr, *after = nullptr;  // the recording's last node before it and at its end
};

// Records the operators that this thread calls, from its construction to stop(). A thread can have one trace at a time.
class Trace {
 public:
  // The last node that the current stream has recorded; null: no node, or no recording.
  using LastNode = void* (*)();
  Trace(const Gpu& gpu, LastNode last_node);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void stop();  // ends the trace; rethrows an exception of a lowering
  std::vector<Call>& calls() { return calls_; }
  const std::vector<size_t>& outermost() const { return outermost_; }
  // Whether the memory existed before the step.
  bool is_external(const Span& span) const { return span.storage >= 0 && external_[static_cast<size_t>(span.storage)]; }

  Span span_of(const at::Tensor& tensor);  // the bytes that its sizes and strides reach; with rows for some columns of a matrix

 private:
  friend struct TraceCallbacks;
  size_t begin(const at::RecordFunction& function);
  void end(size_t call, const std::vector<c10::IValue>& inputs, const at::RecordFunction& function);

  Gpu gpu_;
  LastNode last_node_;
  std::vector<Call> calls_;
  std::vector<size_t> outermost_, open_;
  // A weak reference keeps a storage's object after its memory has been freed, so that no later storage has the same address.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  std::vector<bool> external_;
  std::unordered_map<const c10::StorageImpl*, int64_t> number_;
  at::CallbackHandle handle_ = 0;
  bool records_ = true, results_ = false;
  std::exception_ptr error_;
};

}  // namespace based::decode
