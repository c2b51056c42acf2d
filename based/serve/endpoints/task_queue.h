// Threads that write replies, so that the engine's thread never does: a reply may have megabytes of JSON, or store states on disk.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace based {

class TaskQueue {
 public:
  explicit TaskQueue(int threads);
  ~TaskQueue();  // runs the tasks that were posted, then returns
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Runs the task on one of the threads. It must not throw. May be called from any thread, also by a task.
  void post(std::function<void()> task);

  // From collect() to flush(), the tasks that this thread posts are kept; flush() queues all of them. The queue is locked and its threads
  // are woken once then, instead of once for each task. Only one thread at a time may do so.
  void collect();
  void flush();

 private:
  void run();

  std::atomic<std::thread::id> collecting_{};     // the thread between collect() and flush()
  std::vector<std::function<void()>> collected_;  // used by that thread only
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Runs tasks one after another, in the order of post(), on the threads of a queue. May be destroyed while tasks are pending; they still
// run.
class TaskSequence {
 public:
  explicit TaskSequence(TaskQueue& queue) : state_(std::make_shared<State>(queue)) {}
  void post(std::function<void()> task);

 private:
  struct State {
    explicit State(TaskQueue& the_queue) : queue(the_queue) {}
    TaskQueue& queue;
    std::mutex mutex;
    std::deque<std::function<void()>> tasks;
    bool running = false;
  };
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace based
