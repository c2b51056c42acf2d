#include "based/decode/trace.h"

#include <ATen/record_function.h>

#include "based/core/error.h"
#include "based/ops/framework/arguments.h"

namespace based::decode {
namespace {

thread_local Trace* active = nullptr;

// Visits every tensor in a value.
template <class Visitor>
void for_each_tensor(const c10::IValue& value, Visitor&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) for_each_tensor(one, visit);
  }
}

}  // namespace

struct TraceCallbacks {
  // The arguments are available only when a call begins, the results when it ends.
  struct Context : at::ObserverContext {
    size_t call = 0;
    std::vector<c10::IValue> inputs;
  };
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (active == nullptr || !active->records_ || !function.operator_schema()) return nullptr;
    auto context = std::make_unique<Context>();
    context->call = active->begin(function);
    context->inputs.assign(function.inputs().begin(), function.inputs().end());
    return context;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context == nullptr || active == nullptr) return;
    const auto* known = static_cast<const Context*>(context);
    try {
      active->end(known->call, known->inputs, function);
    } catch (...) {  // torch would only log a callback's error
      active->error_ = std::current_exception();
      active->records_ = true;
    }
  }
};

Trace::Trace(const Gpu& gpu, LastNode last_node) : gpu_(gpu), last_node_(last_node) {
  BASED_ASSERT(active == nullptr);
  active = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(TraceCallbacks::begin, TraceCallbacks::end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

void Trace::stop() {
  if (active != this) return;
  at::removeCallback(handle_);
  active = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

Trace::~Trace() {
  error_ = nullptr;
  stop();
}

Span Trace::span_of(const Tensor& tensor) {
  if (!tensor.has_storage()) return {};
  const auto& storage = tensor.storage();
  const auto [found, is_new] = number_.try_emplace(storage.unsafeGetStorageImpl(), static_cast<int64_t>(storages_.size()));
  if (is_new) {
    storages_.emplace_back(storage.getWeakStorageImpl());
    external_.push_back(!results_);
  }
  int64_t reach = tensor.numel() > 0 ? 1 : 0;
  for (int64_t d = 0; d < tensor.dim() && reach > 0; ++d) reach += (tensor.size(d) - 1) * tensor.stride(d);
  const auto element = static_cast<int64_t>(tensor.element_size()), begin = tensor.storage_offset() * element;
  const auto* memory = static_cast<const char*>(storage.data());
  Span span{found->second, begin, begin + reach * element, memory != nullptr ? memory + begin : nullptr};
  const bool has_rows = tensor.dim() == 2 && tensor.size(0) > 1 && tensor.stride(1) == 1 && tensor.stride(0) > tensor.size(1);
  if (has_rows) span.row = tensor.size(1) * element, span.stride = tensor.stride(0) * element;
  return span;
}

size_t Trace::begin(const at::RecordFunction& function) {
  const size_t number = calls_.size();
  (open_.empty() ? outermost_ : calls_[open_.back()].inner).push_back(number);
  open_.push_back(number);
  Call& call = calls_.emplace_back();
  call.name = ops::operators::displayed(function.name());
  call.before = last_node_ != nullptr ? last_node_() : nullptr;
  const auto schema = function.operator_schema();  // a copy
  const auto& arguments = schema->arguments();
  const auto inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool written = i < arguments.size() && arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    for_each_tensor(inputs[i], [&](const Tensor& tensor) {
      calls_[number].reads.push_back(span_of(tensor));
      if (written) calls_[number].writes.push_back(calls_[number].reads.back());
    });
  }
  return number;
}

void Trace::end(size_t number, const std::vector<c10::IValue>& inputs, const at::RecordFunction& function) {
  records_ = false;  // a lowering's own calls on tensors are not part of the step
  open_.pop_back();
  Call& call = calls_[number];
  call.after = last_node_ != nullptr ? last_node_() : nullptr;
  const std::vector<c10::IValue> outputs(function.outputs().begin(), function.outputs().end());
  results_ = true;
  for (const c10::IValue& value : outputs)
    for_each_tensor(value, [&](const Tensor& tensor) {
      const Span span = span_of(tensor);
      if (std::any_of(call.reads.begin(), call.reads.end(), [&](const Span& read) { return read.storage == span.storage; })) return;
      call.has_new_results = true;
      call.writes.push_back(span);
    });
  results_ = false;
  const auto schema = function.operator_schema();
  if (gpu_.multiprocessors == 0) {
    call.why = "a CPU runs operators one by one";
  } else if (outputs.size() != schema->returns().size()) {
    call.why = "has failed";
  } else if (const Lowering* lowering = find_lowering(call.name); lowering != nullptr) {
    call.kernel = lowering->lower(Operands(gpu_, inputs, outputs, [this](const Tensor& tensor) { return span_of(tensor); }), call.why);
  } else {
    call.why = "no lowering of this operator";
  }
  records_ = true;
}

}  // namespace based::decode
