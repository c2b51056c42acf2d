#include "based/serve/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "based/serve/service/health.h"
#include "tests/serve/service/scheduled.h"

namespace based {
namespace service_test {

using testing::HasSubstr;

struct Waiter {
  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0, failed = 0, status = 0;

  JobEvents events() {
    JobEvents events;
    events.done = [this] { add(ended); };
    events.failed = [this](const ApiError& error) {
      status = error.status();
      add(failed);
    };
    return events;
  }
  void add(int& count) {
    const std::lock_guard lock(mutex);
    ++count;
    changed.notify_all();
  }
  bool wait(int all) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), [&] { return ended + failed == all; });
  }
};

struct Served {
  explicit Served(ServiceOptions options) : service(model, options, nullptr, metrics) {}
  TextModel model{std::make_unique<ByteTokenizer>(), distinct_model(torch::kCPU), "hash"};
  ServiceMetrics metrics;
  Service service;
};

TEST(Service, AFullQueueAndADrainingServiceRefuseJobs) {
  Served served({.slots = 1, .max_waiting_jobs = 2});
  Waiter waiter;
  const auto endless = [&] {
    GenerationJob job = job_of(some_text(3, 1), 1000000);
    job.events = waiter.events();
    return job;
  };
  std::vector<Service::JobId> jobs;
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    try {
      jobs.push_back(served.service.submit(endless()));
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 429);
      EXPECT_GT(error.retry_after(), 0);
      ++refused;
    }
  }
  EXPECT_GE(refused, 3);
  for (const Service::JobId job : jobs) served.service.cancel(job);
  EXPECT_TRUE(waiter.wait(static_cast<int>(jobs.size())));
  EXPECT_EQ(waiter.status, 499);
  // The engine's thread counts its jobs once a turn, so a cancelled one may be counted until the end of the turn that reported it.
  while (served.service.waiting_jobs() > 0) std::this_thread::yield();

  GenerationJob last = job_of(some_text(3, 1), 20);
  last.events = waiter.events();
  served.service.submit(std::move(last));
  served.service.drain(30);
  EXPECT_EQ(waiter.ended, 1);
  try {
    served.service.submit(endless());
    ADD_FAILURE() << "a draining service took a job";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 503);
  }
}

TEST(Service, DrainingCancelsWhatTakesTooLong) {
  Served served({.slots = 1});
  Waiter waiter;
  GenerationJob job = job_of(some_text(3, 1), 10000000);
  job.events = waiter.events();
  served.service.submit(std::move(job));
  served.service.drain(0.05);
  EXPECT_EQ(waiter.failed, 1);
  EXPECT_EQ(waiter.status, 503);
  EXPECT_EQ(served.service.running_jobs(), 0);
}

TEST(Service, TwoHundredAbortedJobsLeaveAllSlotsFree) {
  Served served({.slots = 4});
  Waiter waiter;
  std::vector<Service::JobId> jobs;
  for (int i = 0; i < 200; ++i) {
    GenerationJob job = job_of(some_text(50, i), 1000000);
    job.events = waiter.events();
    jobs.push_back(served.service.submit(std::move(job)));
  }
  for (const Service::JobId job : jobs) served.service.cancel(job);
  ASSERT_TRUE(waiter.wait(200));
  GenerationJob job = job_of(some_text(3, 1), 5);
  job.events = waiter.events();
  served.service.submit(std::move(job));
  ASSERT_TRUE(waiter.wait(201));
  EXPECT_EQ(waiter.ended, 1);
  served.service.drain(30);
  EXPECT_EQ(served.service.free_slots(), 4);
}

TEST(Service, JobsThatCanNeverRunAreRefused) {
  Served served({.slots = 1});
  const auto status_of = [&](auto change) {
    GenerationJob job = job_of(some_text(3, 1), 5);
    change(job);
    try {
      served.service.submit(std::move(job));
    } catch (const ApiError& error) {
      return error.status();
    }
    return 0;
  };
  EXPECT_EQ(status_of([](GenerationJob& job) { job.ids = {}; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.choices = 0; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.max_tokens = -1; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.stops = {""}; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.sampling.temperature = 1e300; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.top_log_probabilities = 21; }), 400);
}

// More prompts than may ever wait: waiting would not help, so the status is not that of a full queue.
TEST(Service, ARequestOfMorePromptsThanMayWaitIsRefusedForGood) {
  Served served({.slots = 1, .max_waiting_jobs = 2});
  std::vector<GenerationJob> jobs(3, job_of(some_text(3, 1), 1));
  try {
    served.service.submit(std::move(jobs));
    FAIL() << "not refused";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 413);
  }
}

TEST(Service, MetricsHaveTheNamesOfOtherEngines) {
  Served served({.slots = 1});
  Waiter waiter;
  HttpRouter router;
  add_health_routes(router, served.service, served.metrics);
  GenerationJob job = job_of(some_text(10, 1), 4);
  job.events = waiter.events();
  served.service.submit(std::move(job));
  ASSERT_TRUE(waiter.wait(1));
  const std::string text = served.metrics.text();
  for (const char* const line : {"prompt_tokens_total 10\n", "generation_tokens_total 4\n", "request_success_total 1\n",
                                 "time_to_first_token_seconds_count 1\n", "inter_token_latency_seconds_count 3\n",
                                 "e2e_request_latency_seconds_count 1\n", "num_requests_running ", "num_requests_waiting ", "slots_free "})
    EXPECT_THAT(text, HasSubstr(line));
}

}  // namespace service_test
}  // namespace based
