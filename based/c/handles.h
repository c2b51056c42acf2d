// The objects of the C interface's handles, and the code that its functions share: the translation of exceptions, the lock of a model, and
// engines that are reused.
#pragma once
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "based/c/based.h"
#include "based/generate/scorer.h"
#include "based/generate/text_model.h"

namespace based::c {

inline constexpr const char* kStopped = "the progress callback stopped the call";

// Stores the message of the exception that is being handled for based_last_error(), and returns its status.
based_status record_exception() noexcept;

template <class Body>
based_status guarded(Body&& body) noexcept {
  try {
    body();
    return BASED_OK;
  } catch (...) {
    return record_exception();
  }
}

// Throws UsageError if the pointer is null.
void require(const void* pointer, const char* name);

// The caller's options; members that are newer than the caller have the defaults. Throws UsageError if `size` is not set, or if members
// that are newer than this library are set.
template <class Options>
Options complete(const Options* given, void (*init)(Options*), const char* name) {
  Options options;
  init(&options);
  if (given == nullptr) return options;
  if (given->size < sizeof given->size || given->size > 4096)
    throw UsageError(std::string(name) + ": size is " + std::to_string(given->size) + "; set the defaults by " + name + "_init");
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (given->size > sizeof options &&
      std::any_of(bytes + sizeof options, bytes + given->size, [](unsigned char byte) { return byte != 0; }))
    throw UsageError(std::string(name) + ": sets an option that this version of the library does not have");
  std::memcpy(&options, given, std::min(given->size, sizeof options));
  options.size = sizeof options;
  return options;
}

// Writes the members that the caller's struct has; its `size` stays.
template <class Result>
void copy_out(Result value, Result* result, const char* name) {
  if (result->size < sizeof result->size) throw UsageError(std::string(name) + ": size is not set");
  value.size = result->size;
  std::memcpy(result, &value, std::min(result->size, sizeof value));
}

// Throws UsageError that names `what` for an id outside the model's vocabulary.
void require_ids(const LanguageModel& model, const std::vector<int64_t>& ids, const std::string& what);

// A copy of the array for the caller, who frees it by based_free(), with a zero after it. Throws Error if memory is short.
void* allocate_copy(const void* data, size_t bytes);

// A loaded model. Its handles, states and generations share it.
struct Loaded {
  TextModel text;
  std::string folder, device, dtype;
  bool invariant = false;
  std::recursive_mutex mutex;  // recursive: a foreign language may free a handle within a progress callback

  // The engine of the last lease, if it is idle, and the options that it was made with. Memory and a GPU's recordings are reused.
  std::unique_ptr<Engine> idle_engine;
  EngineOptions idle_options;

  std::unique_ptr<Scorer> scorer;
  int64_t scorer_length = 0;  // ScorerOptions::max_length

  LanguageModel& model() const { return *text.model; }
};

// Held during each call that uses a model: the model's lock, and a thread state without the caller's CUDA stream and autocast.
class ModelCall {
 public:
  explicit ModelCall(Loaded& loaded);

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_;
  std::optional<c10::StreamGuard> stream_;
};

// An engine of the model, for a call or for a generation.
class EngineLease {
 public:
  // `tokens`: the most tokens that all sequences in the slots may have at the same time, for a GPU's cache.
  EngineLease(Loaded& loaded, EngineOptions options, int64_t tokens);

  Engine& operator*() const { return *engine_; }
  Engine* operator->() const { return engine_.get(); }
  // Keeps the engine for the next lease, if it is idle. Without this call the engine is destroyed with the lease.
  void give_back();

 private:
  Loaded& loaded_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

// A prompt as the engine takes it.
TextRequest request_of(const Loaded& loaded, const based_prompt& prompt, const char* name);

}  // namespace based::c

struct based_model {
  std::shared_ptr<based::c::Loaded> loaded;
};

struct based_state {
  std::shared_ptr<based::c::Loaded> loaded;
  std::shared_ptr<const based::SequenceState> sequence;
};
