// This process as one rank of a training job of several processes.
#pragma once
#include <memory>

#include "based/parallel/collectives.h"
#include "based/parallel/environment.h"
#include "based/parallel/watch.h"

namespace based {

struct JobOptions {
  std::chrono::milliseconds collective_timeout = std::chrono::seconds(120);  // for one operation on tensors; see collective_timeout()
  std::chrono::milliseconds host_timeout = std::chrono::minutes(30);     // for barrier and gather_text, in which ranks wait for checkpoints
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(20);  // for the first connection; c10d tries for 2.5 times as long
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);      // from the first rank's start to the last one's
  std::chrono::milliseconds join_notice = std::chrono::seconds(10);      // after this time rank 0 logs which ranks it waits for
  WatchOptions watch = {};
};

// Joins the job. The constructor returns when all ranks have joined; it throws Error if the store cannot be reached, if a rank with this
// number has joined already, if the ranks were given different numbers of ranks, or if some do not join.
class Job {
 public:
  Job(const RankEnvironment& rank, torch::Device device, JobOptions options = {});
  // Without leave(), the job counts as failed: the other ranks end too.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Tensors on the device. An object of a world of one rank serves all devices.
  const std::shared_ptr<Collectives>& ranks() const { return ranks_; }

  // This rank has done its work. Blocks until all ranks have; they end independently afterwards. Call it before exit codes are decided.
  void leave();

 private:
  void join(torch::Device device);
  void check_alone();
  void check_world();
  void await_others();
  std::string absent_within(std::chrono::milliseconds limit);
  void say_done();
  void fail();

  const RankEnvironment rank_;
  const JobOptions options_;
  StoreHandle store_, gpu_store_;  // each with a connection of its own
  std::unique_ptr<Watch> watch_;
  std::shared_ptr<Collectives> host_, ranks_;
  bool left_ = false;
};

}  // namespace based
