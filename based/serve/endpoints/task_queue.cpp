#include "based/serve/endpoints/task_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "based/core/profile.h"

namespace based {

TaskQueue::TaskQueue(int threads) {
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

TaskQueue::~TaskQueue() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void TaskQueue::collect() { collecting_ = std::this_thread::get_id(); }

void TaskQueue::flush() {
  collecting_ = std::thread::id();
  if (collected_.empty()) return;
  {
    const std::scoped_lock lock(mutex_);
    std::move(collected_.begin(), collected_.end(), std::back_inserter(tasks_));
  }
  collected_.clear();
  ready_.notify_all();
}

void TaskQueue::post(std::function<void()> task) {
  if (collecting_ == std::this_thread::get_id()) {
    collected_.push_back(std::move(task));
    return;
  }
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  ready_.notify_one();
}

void TaskQueue::run() {
  name_profile_thread("replies");
  std::unique_lock lock(mutex_);
  for (;;) {
    ready_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    {
      const ProfileRange range(ProfileLevel::phases, "reply");
      task();
    }
    task = nullptr;  // its captures are destroyed without the lock
    lock.lock();
  }
}

void TaskSequence::post(std::function<void()> task) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
    if (state_->running) return;
    state_->running = true;
  }
  state_->queue.post([state = state_] { run(state); });
}

// One task at a time, so that long sequences do not keep others waiting.
void TaskSequence::run(const std::shared_ptr<State>& state) {
  std::function<void()> task;
  {
    const std::scoped_lock lock(state->mutex);
    task = std::move(state->tasks.front());
    state->tasks.pop_front();
  }
  task();
  task = nullptr;
  const std::scoped_lock lock(state->mutex);
  if (state->tasks.empty()) {
    state->running = false;
  } else {
    state->queue.post([state] { run(state); });
  }
}

}  // namespace based
