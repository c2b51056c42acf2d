#include "based/parallel/job.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "based/core/error.h"
#include "based/core/log.h"
#include "based/parallel/gpu_collectives.h"

namespace based {
namespace {

constexpr auto kFarewell = std::chrono::seconds(30);  // for the others to leave a job that was completed

}  // namespace

Job::Job(const RankEnvironment& rank, torch::Device device, JobOptions options) : rank_(rank), options_(options) {
  if (rank.world == 1) {
    ranks_ = make_single_rank();
    return;
  }
  try {
    store_ = connect_store(rank, rank.serves_store, options.connect_timeout);
    check_alone();
    join(device);
  } catch (const c10::DistError& error) {
    std::this_thread::sleep_for(kWatchPatience);
    fail();
    throw Error("joining the job as rank " + std::to_string(rank.rank) + ": " + store_failure(rank, error));
  } catch (const c10::Error& error) {
    fail();
    throw Error("joining the job as rank " + std::to_string(rank.rank) + ": " + store_message(error));
  } catch (...) {
    fail();
    throw;
  }
}

// The number is taken first: a second process with the same one must not send heartbeats in the name of the first.
void Job::check_alone() {
  const std::string name = std::to_string(rank_.rank);
  if (store_->add("started/" + name, 1) == 1) return;
  throw Error("rank " + name + " was started twice: two processes of this job have this number");
}

void Job::join(torch::Device device) {
  check_world();
  watch_ = std::make_unique<Watch>(connect_store(rank_, false, options_.connect_timeout), rank_, options_.watch);
  await_others();
  watch_->all_joined();
  const StoreHandle values = c10::make_intrusive<c10d::PrefixStore>("values", store_);
  host_ = make_host_collectives(rank_.rank, rank_.world,
                                make_store_exchange(values, rank_, options_.collective_timeout, options_.host_timeout));
  if (device.is_cpu()) {
    ranks_ = host_;
    return;
  }
  const GpuCollectivesMaker make = gpu_collectives();
  if (make == nullptr) throw UsageError("several ranks on GPUs: this build has no CUDA; build with -DBASED_WITH_CUDA=ON");
  gpu_store_ = connect_store(rank_, false, options_.join_timeout);
  ranks_ = make({c10::make_intrusive<c10d::PrefixStore>("nccl", gpu_store_), host_, device, options_.collective_timeout});
}

void Job::check_world() {
  const std::string own = std::to_string(rank_.world);
  const std::string first = store_->compareSet("world", std::string(), own);
  if (first != own)
    throw Error("the ranks differ in their number: WORLD_SIZE is " + own + " for rank " + std::to_string(rank_.rank) + ", " + first +
                " for the rank that joined first");
}

void Job::await_others() {
  store_->set("joined/" + std::to_string(rank_.rank), std::string("1"));
  const auto notice = std::min(options_.join_notice, options_.join_timeout), rest = options_.join_timeout - notice;
  std::string absent = absent_within(notice);
  if (absent.empty()) return;
  if (rank_.rank == 0 && rest.count() > 0)
    log_info("waiting for " + absent + " of " + std::to_string(rank_.world) + " ranks to join, for at most " +
             std::to_string(rest.count() / 1000) + " s more");
  absent = absent_within(rest);
  if (absent.empty()) return;
  throw Error(absent + " of " + std::to_string(rank_.world) + " ranks did not join within " +
              std::to_string(options_.join_timeout.count() / 1000) + " s; under Slurm, start the ranks by srun");
}

// The ranks that have not joined when the limit has passed; empty as soon as all have.
std::string Job::absent_within(std::chrono::milliseconds limit) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < rank_.world; ++rank) keys.push_back("joined/" + std::to_string(rank));
  try {
    store_->wait(keys, limit);
    return "";
  } catch (const std::exception&) {  // the time has passed, or the connection is lost, which the next request finds out
    return absent_ranks(*store_, "joined/", "", rank_.world);
  }
}

void Job::leave() {
  if (left_ || rank_.world == 1) return;
  host_->barrier();
  if (const auto gpu = std::dynamic_pointer_cast<GpuCollectives>(ranks_)) gpu->leave();
  left_ = true;
  watch_->end();
  try {
    say_done();
  } catch (const std::exception& error) {
    log_warning("after the job was completed, " + store_failure(rank_, error));
  }
}

void Job::say_done() {
  if (!rank_.launched) store_->set(Watch::alive_key(rank_.rank), std::string(Watch::kDone));
  int64_t leavers = store_->add("left", 1);
  if (!rank_.serves_store) return;
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  while (leavers < rank_.world && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    leavers = store_->add("left", 0);
  }
}

Job::~Job() {
  if (!left_) fail();
}

// Tells the other ranks to end. launch_ranks does that itself, when it sees this process end.
void Job::fail() {
  if (store_ == nullptr || rank_.launched) return;
  try {
    if (watch_ != nullptr) watch_->end();
    store_->set("stop", "rank " + std::to_string(rank_.rank) + " failed; its messages say why");
    if (rank_.serves_store) std::this_thread::sleep_for(kLastWords);
  } catch (const std::exception& error) {
    log_warning("the other ranks could not be told that this one failed: " + store_message(error));
  }
}

}  // namespace based
