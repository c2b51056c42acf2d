#include "based/parallel/launcher.h"

#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>

#include "based/core/error.h"
#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/text.h"
#include "based/parallel/rank_process.h"
#include "based/parallel/store.h"
#include "based/parallel/watch.h"

namespace based {
namespace {

using LaunchClock = std::chrono::steady_clock;
constexpr int kPollMilliseconds = 20;
constexpr auto kCulpritPatience = std::chrono::seconds(2);  // for the rank that made another end with kConsequenceExit

// Serves the store on a port that the kernel chooses. c10d would listen on all interfaces, but the store has no authentication.
c10::intrusive_ptr<c10d::TCPStore> serve_on_loopback() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw Error("cannot open a port for the ranks: " + system_message(errno));
  c10d::TCPStoreOptions options;
  options.port = ntohs(address.sin_port);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener;  // the store owns and closes it
  silence_store_warnings();
  try {
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& error) {
    throw Error("cannot serve the store of the ranks: " + store_message(error));
  }
}

int64_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

Variables variables_of_rank(int64_t rank, int64_t ranks, int port) {
  Variables result = process_variables();
  for (const char* name : {"RANK", "LOCAL_RANK"}) result[name] = std::to_string(rank);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) result[name] = std::to_string(ranks);
  result["MASTER_ADDR"] = "127.0.0.1";
  result["MASTER_PORT"] = std::to_string(port);
  result["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // this process serves the store
  result["BASED_LAUNCHED"] = "1";
  result.erase("TORCHELASTIC_RESTART_COUNT");
  result.emplace("OMP_NUM_THREADS", std::to_string(std::max<int64_t>(1, usable_cores() / ranks)));
  return result;
}

// The arguments that this program was started with.
std::vector<std::string> own_arguments() {
  const std::string bytes = read_file("/proc/self/cmdline");  // each ends with a null character
  std::vector<std::string> arguments;
  for (size_t start = 0; start < bytes.size();) {
    const size_t end = std::min(bytes.find('\0', start), bytes.size());
    arguments.push_back(bytes.substr(start, end - start));
    start = end + 1;
  }
  return arguments;
}

// The kernel names a process after the last part of the path that it runs, so this is the file itself unless it was removed.
std::string own_program() {
  const std::string link = "/proc/self/exe";
  std::error_code none;
  const std::string path = std::filesystem::read_symlink(link, none).string();
  return std::filesystem::exists(path, none) ? path : link;
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options), server_(serve_on_loopback()) {
    // The same keys as those of connect_store().
    store_ = c10::make_intrusive<c10d::PrefixStore>("based/" + RankEnvironment().attempt, server_);
    make_folder(options.log_folder);
    const std::vector<std::string> arguments = options.command.empty() ? own_arguments() : options.command;
    const std::string program = options.command.empty() ? own_program() : options.command.at(0);
    for (int64_t rank = 0; rank < options.ranks; ++rank) ranks_.push_back(std::make_unique<RankProcess>(rank, options.log_folder));
    for (const auto& rank : ranks_) rank->start(program, arguments, variables_of_rank(rank->rank(), options.ranks, server_->getPort()));
  }

  int run() {
    while (std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->running(); })) {
      await_messages();
      ranks_[0]->forward_messages();
      reap();
      pass_on_signal();
      keep_deadlines();
    }
    ranks_[0]->forward_messages();
    if (!culprit_ && consequence_) fail(*consequence_);
    return exit_code();
  }

 private:
  void await_messages() const {
    pollfd messages{ranks_[0]->messages(), POLLIN, 0};
    poll(&messages, 1, kPollMilliseconds);
  }

  void reap() {
    std::vector<RankProcess*> failed;
    for (const auto& rank : ranks_) {
      if (!rank->reap()) continue;
      first_end_ = first_end_.value_or(LaunchClock::now());
      if (rank->status() == 0 || ended_by_signal(*rank)) continue;
      if (culprit_ || stopped_)
        log_info("rank " + std::to_string(rank->rank()) + " " + rank->end() + ", as a consequence");
      else
        failed.push_back(rank.get());
    }
    // Several ranks may have ended since the last call. One with kConsequenceExit says itself that it was not the first.
    std::stable_partition(failed.begin(), failed.end(), [](const auto* rank) { return rank->exit_code() != kConsequenceExit; });
    for (RankProcess* rank : failed) {
      if (culprit_) {
        log_info("rank " + std::to_string(rank->rank()) + " " + rank->end() + ", as a consequence");
      } else if (rank->exit_code() != kConsequenceExit) {
        fail(*rank);
      } else if (consequence_ == nullptr) {
        consequence_ = rank;
        culprit_deadline_ = LaunchClock::now() + kCulpritPatience;
      }
    }
  }

  // Whether the rank ended as asked: it saved its state and returned 1, had not begun yet, or was interrupted a second time.
  bool ended_by_signal(const RankProcess& rank) const {
    if (signal_ == 0 || culprit_) return false;
    return rank.exit_code() == 1 || rank.exit_code() == 128 + SIGINT || (WIFSIGNALED(rank.status()) && WTERMSIG(rank.status()) == signal_);
  }

  void fail(RankProcess& rank) {
    culprit_ = &rank;
    ranks_[0]->forward_messages();
    const std::string end = "rank " + std::to_string(rank.rank()) + " " + rank.end();
    const std::string line = rank.last_line();
    log_error(end + (line.empty() ? "; it wrote nothing to " + rank.log_path() : "; the last line of " + rank.log_path() + ": " + line));
    end_others(end);
  }

  void end_others(const std::string& reason) {
    try {
      store_->set("stop", reason);
    } catch (const std::exception& error) {
      log_info("the ranks are ended by signals alone, because the store does not answer: " + store_message(error));
    }
    for (const auto& rank : ranks_) rank->send(SIGTERM);
    kill_deadline_ = LaunchClock::now() + options_.grace;
  }

  void pass_on_signal() {
    if (signal_ != 0 || culprit_ || !interrupted()) return;
    signal_ = interrupt_signal();
    signal_time_ = LaunchClock::now();
    log_info("signal " + std::to_string(signal_) + " is passed on to " + std::to_string(options_.ranks) +
             " ranks; a second one kills them");
    for (const auto& rank : ranks_) rank->send(signal_);
  }

  void keep_deadlines() {
    const auto now = LaunchClock::now();
    if (kill_deadline_ && now >= *kill_deadline_) {
      for (const auto& rank : ranks_) rank->send(SIGKILL);
      kill_deadline_.reset();
    }
    if (culprit_) return;
    if (culprit_deadline_ && now >= *culprit_deadline_) return fail(*consequence_);
    if (signal_ == 0 || !first_end_ || stopped_ || now < std::max(*first_end_, signal_time_) + options_.stop_patience) return;
    stopped_ = true;
    log_error("some ranks still run " + std::to_string(options_.stop_patience.count() / 1000) +
              " s after the first one ended at a signal; they are killed");
    end_others("the job was stopped by a signal");
  }

  int exit_code() const {
    if (culprit_) return culprit_->exit_code() == 2 ? 2 : 1;
    int highest = 0;
    for (const auto& rank : ranks_) highest = std::max(highest, WIFEXITED(rank->status()) ? rank->exit_code() : 1);
    return highest;
  }

  const LaunchOptions& options_;
  const InterruptScope interrupts_;  // a second signal ends this process, and by PR_SET_PDEATHSIG the ranks
  c10::intrusive_ptr<c10d::TCPStore> server_;
  StoreHandle store_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  int signal_ = 0;  // that was passed on
  RankProcess* culprit_ = nullptr;
  RankProcess* consequence_ = nullptr;  // the first that ended with kConsequenceExit, while the culprit is unknown
  bool stopped_ = false;                // the ranks that still ran were killed after a signal
  LaunchClock::time_point signal_time_;
  std::optional<LaunchClock::time_point> first_end_, kill_deadline_, culprit_deadline_;
};

}  // namespace

int launch_ranks(const LaunchOptions& options) {
  if (options.ranks < 1) throw UsageError("at least one rank must be started");
  return Launch(options).run();
}

}  // namespace based
