#include "based/data/ordered_encoder.h"

#include <chrono>
#include <csignal>
#include <system_error>

#include "based/core/log.h"

namespace based {
namespace {

constexpr size_t kMostPendingBytes = 32 << 20;

// Threads that are started during its lifetime do not receive the signals that ask for a stop. The caller's thread receives them, and its
// read of a pipe returns.
class StopSignalsBlocked {
 public:
  StopSignalsBlocked() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~StopSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignalsBlocked(const StopSignalsBlocked&) = delete;
  StopSignalsBlocked& operator=(const StopSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

OrderedEncoder::OrderedEncoder(const Tokenizer& tokenizer, int64_t threads, std::function<void(const EncodedBlock&)> write)
    : tokenizer_(tokenizer), write_(std::move(write)) {
  if (threads > 1) start(threads);
}

OrderedEncoder::~OrderedEncoder() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  task_added_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void OrderedEncoder::start(int64_t threads) {
  const StopSignalsBlocked blocked;
  for (int64_t i = 0; i < threads; ++i) {
    try {
      workers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // a limit of processes or memory
      log_warning("only " + std::to_string(workers_.size()) + " of " + std::to_string(threads) + " threads could be started");
      return;
    }
  }
}

void OrderedEncoder::add(DocumentBlock block) {
  if (workers_.empty()) return write_(encode(block));
  std::unique_lock lock(mutex_);
  const size_t bytes = block.bytes.size();
  task_written_.wait(lock, [&] { return failure_ || tasks_.empty() || pending_bytes_ + bytes <= kMostPendingBytes; });
  rethrow_failure();
  tasks_.push_back(std::make_unique<Task>());
  tasks_.back()->block = std::move(block);
  pending_bytes_ += bytes;
  task_added_.notify_one();
}

void OrderedEncoder::finish(const std::function<bool()>& stop) {
  std::unique_lock lock(mutex_);
  constexpr auto kPollInterval = std::chrono::milliseconds(50);
  while (!stop() && !task_written_.wait_for(lock, kPollInterval, [&] { return failure_ || tasks_.empty(); })) {}
  rethrow_failure();
}

void OrderedEncoder::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

void OrderedEncoder::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    task_added_.wait(lock, [&] { return stopped_ || started_ < tasks_.size(); });
    if (stopped_) return;
    Task& task = *tasks_[started_++];
    lock.unlock();
    try {
      task.encoded = encode(task.block);
    } catch (...) {
      task.error = std::current_exception();
    }
    lock.lock();
    task.done = true;
    if (!writing_) write_done_tasks(lock);
  }
}

// Writes the tasks at the front that are done. Called with the lock, which is released during each write. A task stays in tasks_ until it
// is written, so that finish() waits for the last one.
void OrderedEncoder::write_done_tasks(std::unique_lock<std::mutex>& lock) {
  writing_ = true;
  while (!tasks_.empty() && tasks_.front()->done) {
    Task& task = *tasks_.front();
    if (!failure_ && !task.error && !stopped_) {
      lock.unlock();
      try {
        write_(task.encoded);
      } catch (...) {
        task.error = std::current_exception();
      }
      lock.lock();
    }
    if (!failure_) failure_ = task.error;
    pending_bytes_ -= task.block.bytes.size();
    tasks_.pop_front();
    --started_;
    task_written_.notify_all();
  }
  writing_ = false;
}

EncodedBlock OrderedEncoder::encode(const DocumentBlock& block) const {
  EncodedBlock encoded;
  encoded.bytes_read = block.bytes_read;
  const std::optional<int32_t> end_of_text = tokenizer_.end_of_text();
  parse_block(block, [&](const Document& document) {
    const size_t before = encoded.ids.size();
    try {
      tokenizer_.encode_text(document.text, encoded.ids);
    } catch (const Error& error) {
      throw Error(block.path + (document.line > 0 ? ":" + std::to_string(document.line) : "") + ": " + error.what());
    }
    if (encoded.ids.size() == before) {
      ++encoded.empty;
      return;
    }
    if (end_of_text) encoded.ids.push_back(*end_of_text);
    encoded.documents.push_back({encoded.ids.size(), std::string(document.source)});
    encoded.text_bytes += static_cast<int64_t>(document.text.size());
  });
  return encoded;
}

}  // namespace based
