#include "based/experiments/sweep.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <thread>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/models/device.h"
#include "based/models/failure.h"
#include "based/models/weights.h"

namespace based {
namespace {

namespace fs = std::filesystem;
constexpr double kShowSeconds = 0.1;
constexpr size_t kRunsPerUpdate = 1024;                 // runs
constexpr auto kPoll = std::chrono::milliseconds(200);  // interval of checks for results of other processes
constexpr const char* kFailedFile = "failed";           // in the folder of a run whose failure is stored: holds the reason

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

enum class Stage { waiting, running, finished };

struct SweepRun {
  std::string key;
  Stage stage = Stage::waiting;
  bool succeeded = false;                      // finished and did not fail
  int64_t steps = 0;                           // steps done
  bool replace = false;                        // the stored result is to be replaced by that of a new run
  std::optional<fs::file_time_type> old_file;  // when the file to be replaced was written; none: the result is a line of results.jsonl
};

class NotKept : public Error {
 public:
  using Error::Error;
};

// Whether an exception means that the device failed. Then the run is not stored as failed.
bool is_of_device(const std::exception& error, torch::Device device) {
  return device.is_cuda() && dynamic_cast<const c10::Error*>(&error) != nullptr &&
         dynamic_cast<const c10::OutOfMemoryError*>(&error) == nullptr;
}

class Sweep {
 public:
  Sweep(const ExperimentFile& file, ResultsFolder& results, const SweepOptions& options)
      : file_(file),
        results_(results),
        options_(options),
        runs_(file.runs().size()),
        has_unfinished_(!options.unfinished.empty() && is_folder(options.unfinished)),
        order_(file.runs().size()) {
    if (file.kind->one_at_a_time && (options.devices.size() > 1 || options.runs_per_device > 1))
      throw UsageError("a process executes one run of kind = \"" + std::string(file.kind->name) +
                       "\" at a time: leave out --runs-per-device, and start one process for each GPU, with --device cuda:0, --device "
                       "cuda:1, …, on the same folder");
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return planned(a).cost > planned(b).cost; });
  }

  SweepOutcome run() {
    look_up();
    outcome_.runs = static_cast<int64_t>(runs_.size());
    for (const SweepRun& run : runs_) before_ += run.steps;
    if (left() == 0) return outcome();
    results_.make();
    warn_of_models();
    const InterruptScope interrupts;
    if (options_.time_limit > 0) interrupt_after(options_.time_limit);
    std::vector<std::unique_ptr<DeviceData>> data;
    for (const torch::Device& device : options_.devices) data.push_back(file_.experiment->load(device));
    int64_t steps = 0;
    for (size_t i = 0; i < runs_.size(); ++i)
      if (runs_[i].stage == Stage::waiting) steps += planned(i).steps;
    progress_ = std::make_unique<Progress>("experiment", steps);
    std::vector<std::thread> workers;
    const int64_t most = left();
    for (size_t d = 0; d < data.size(); ++d) {
      const torch::Device device = options_.devices[d];
      const int64_t count = options_.runs_per_device > 0                     ? options_.runs_per_device
                            : device.is_cuda() && !file_.kind->one_at_a_time ? 4
                                                                             : 1;
      for (int64_t w = 0; w < std::min(count, most); ++w)
        workers.emplace_back([this, device, count, held = data[d].get()] { work(device, *held, count); });
    }
    for (std::thread& worker : workers) worker.join();
    progress_->finish();
    if (!broken_.empty()) throw Error(broken_);
    outcome_.interrupted = left() > 0;
    return outcome();
  }

 private:
  const PlannedRate& planned(size_t index) const { return *file_.runs()[index].rate; }
  torch::DeviceType device_type() const { return options_.devices.front().type(); }

  int64_t left() const {
    return std::count_if(runs_.begin(), runs_.end(), [](const SweepRun& run) { return run.stage != Stage::finished; });
  }

  void look_up() {
    const std::unordered_set<std::string> kept = results_.keys();
    Progress progress("experiment: results", static_cast<int64_t>(runs_.size()), {.delay = kProgressDelay});
    for (size_t i = 0; i < runs_.size(); ++i) {
      runs_[i].key = run_key(*file_.kind, file_.runs()[i], device_type());
      if (kept.contains(runs_[i].key)) look_at(i);
      if ((i + 1) % kRunsPerUpdate == 0 || i + 1 == runs_.size()) progress.update(static_cast<int64_t>(i + 1));
    }
  }

  void look_at(size_t index) {
    SweepRun& run = runs_[index];
    std::error_code gone;
    const auto written = fs::last_write_time(results_.file(run.key), gone);  // before reading, so that a file replaced meanwhile is newer
    const auto stored = results_.read(file_, index, device_type(), true);
    if (!stored) return;
    if (options_.fresh || (options_.retry && (!stored->failed.empty() || !has_model(run)))) {
      run.replace = true;
      if (!gone) run.old_file = written;
      return;
    }
    ++outcome_.kept;
    finish(index, *stored);
    remove_leftovers(run);
  }

  // Removes the lock file and the run's folder if a process was killed after it had stored the result: LockFile's destructor removes a lock
  // that it has taken. Leftovers that remain do no harm.
  void remove_leftovers(const SweepRun& run) const {
    try {
      const bool folder = run.succeeded && has_unfinished_ && path_exists(unfinished_folder(run));
      if (!folder && !path_exists(results_.claim(run.key))) return;
      LockFile claim(results_.claim(run.key));
      if (claim.try_take() == LockFile::Taken::yes && folder) remove_unfinished(run);
    } catch (const Error&) {  // a folder that cannot be written to
    }
  }

  std::string unfinished_folder(const SweepRun& run) const {
    return options_.unfinished.empty() ? "" : path_in(options_.unfinished, run.key);
  }

  void remove_unfinished(const SweepRun& run) const {
    remove_tree(unfinished_folder(run));
    std::error_code ignored;
    fs::remove(options_.unfinished, ignored);  // if it is empty
  }

  // Removes a state from which the run must not continue: any state with --fresh, and the state of a failed run.
  void prepare_folder(const SweepRun& run) const {
    const std::string folder = unfinished_folder(run);
    if (!folder.empty() && (options_.fresh || path_exists(path_in(folder, kFailedFile)))) remove_unfinished(run);
  }

  // Called when the result is stored. The folder of a run that failed stays, with the reason in a file, until the run is repeated.
  void close_folder(const SweepRun& run, const std::string& failed) const {
    const std::string folder = unfinished_folder(run);
    if (folder.empty() || !path_exists(folder)) return;
    try {
      failed.empty() ? remove_unfinished(run) : write_file_atomic(path_in(folder, kFailedFile), failed + "\n");
    } catch (const Error& error) {
      log_warning(std::string("the result is stored, but the run's folder remains: ") + error.what());
    }
  }

  std::string model_folder(const SweepRun& run) const { return (fs::path(options_.save_models) / run.key).string(); }

  // Whether the run's model is saved, or models need not be saved. A model's config.json is written last, so its presence is enough.
  bool has_model(const SweepRun& run) const {
    std::error_code none;
    return options_.save_models.empty() || fs::exists(fs::path(model_folder(run)) / "config.json", none);
  }

  // Creates the folder for models before training starts, so that a failure is reported before hours of training.
  void warn_of_models() const {
    if (options_.save_models.empty()) return;
    std::error_code failed;
    fs::create_directories(options_.save_models, failed);
    if (failed)
      log_warning(options_.save_models + ": cannot make the folder: " + failed.message() + "; results are kept, but no models are saved");
  }

  SweepOutcome outcome() {
    for (const SweepRun& run : runs_) outcome_.without_model += run.succeeded && !has_model(run);
    return outcome_;
  }

  // A line is written from a file, so a run that is to be replaced counts as done only with a new file.
  bool there(const SweepRun& run) const {
    std::error_code none;
    const auto written = fs::last_write_time(results_.file(run.key), none);
    if (none) return !run.replace && results_.has_line(run.key);
    return !run.replace || written != run.old_file;
  }

  void finish(size_t index, const StoredRun& stored) {
    runs_[index].stage = Stage::finished;
    runs_[index].steps = planned(index).steps;
    outcome_.failed += !stored.failed.empty();
    runs_[index].succeeded = stored.failed.empty();
    if (!stored.failed.empty()) return;
    const double score = file_.experiment->score(stored);
    if (best_.empty() || file_.kind->is_better(score, best_score_)) {
      best_score_ = score;
      best_ = point_name(planned(index).series, planned(index).label);
    }
  }

  // Claims and returns the next run that no other thread or process executes; nullopt if none is left.
  std::optional<size_t> next(std::unique_ptr<LockFile>& claim) {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        bool waiting = false;
        for (const size_t index : order_) {
          if (stopped()) return {};
          SweepRun& run = runs_[index];
          if (run.stage != Stage::waiting || taken_elsewhere(index)) continue;
          claim = std::make_unique<LockFile>(results_.claim(run.key));
          const LockFile::Taken taken = claim->try_take();
          if (taken == LockFile::Taken::yes && !taken_elsewhere(index)) {
            run.stage = Stage::running;
            show();
            return index;
          }
          claim.reset();
          if (taken == LockFile::Taken::gone && !path_exists(results_.folder())) throw Error(results_.folder() + ": the folder went away");
          waiting = waiting || run.stage == Stage::waiting;
        }
        if (!waiting) return {};
        show();
      }
      std::this_thread::sleep_for(kPoll);
    }
  }

  // Whether another process has finished the run meanwhile. If so, takes over its result.
  bool taken_elsewhere(size_t index) {
    if (!there(runs_[index])) return false;
    const auto stored = results_.read(file_, index, device_type(), true);
    if (!stored) return false;
    ++outcome_.done;
    finish(index, *stored);
    show();
    return true;
  }

  bool stopped() const { return interrupted() || !broken_.empty(); }

  void work(torch::Device device, const DeviceData& data, int64_t count) {
    if (device.is_cpu() && count > 1) {
      const int share = static_cast<int>(std::thread::hardware_concurrency() / static_cast<unsigned>(count));
      at::set_num_threads(std::clamp(share, 1, at::get_num_threads()));  // at most the number that the environment sets
    }
    try {
      std::unique_ptr<LockFile> claim;
      while (const auto index = next(claim)) {
        const bool whole = one_run(*index, device, data);
        claim.reset();
        if (!whole) return;
      }
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      if (broken_.empty()) broken_ = failure_line(error);
    }
  }

  // Executes a run and stores its result. Returns false if it was interrupted.
  bool one_run(size_t index, torch::Device device, const DeviceData& data) {
    const double start = now();
    StoredRun stored = header(index, device);
    prepare_folder(runs_[index]);
    RunHooks hooks;
    hooks.folder = unfinished_folder(runs_[index]);
    hooks.commit = options_.commit;
    hooks.progress = [&](int64_t step, int64_t, double, double) {
      const std::lock_guard lock(mutex_);
      runs_[index].steps = step;
      if (now() - shown_ > kShowSeconds) show();
    };
    bool kept = false;
    const auto keep_outcome = [&](const Config& outcome) {
      file_.experiment->check(index, outcome);
      stored.outcome = outcome;
      stored.seconds = now() - start;
      keep(stored);
      kept = true;
    };
    if (!options_.save_models.empty())
      hooks.trained = [&](const LanguageModel& model, const Config& outcome) {
        keep_outcome(outcome);  // before the model, which may fill the disk
        save(model, index);
      };
    try {
      const auto outcome = file_.experiment->run(index, data, hooks);
      if (!outcome) return false;
      if (!kept) keep_outcome(*outcome);
    } catch (const NotKept&) {
      throw;
    } catch (const CannotRun& error) {
      throw Error(run_name(file_.runs()[index]) + ": " + error.what());
    } catch (const std::exception& error) {
      if (kept || is_of_device(error, device)) throw Error(device.str() + ": " + failure_line(error));
      stored.failed = failure_line(error);
      stored.seconds = now() - start;
      log_warning(run_name(file_.runs()[index]) + ": failed: " + stored.failed);
      keep(stored);
    }
    close_folder(runs_[index], stored.failed);
    if (stored.failed.empty())
      log_info(run_name(file_.runs()[index]) + ": " + file_.kind->score + " " + format_number(file_.experiment->score(stored), 4) + " in " +
               format_duration(stored.seconds));
    const std::lock_guard lock(mutex_);
    ++outcome_.done;
    finish(index, stored);
    show();
    return true;
  }

  // A result that cannot be written is printed in full, so that it is not lost.
  void keep(const StoredRun& stored) {
    try {
      results_.write(stored);
    } catch (const Error& error) {
      throw NotKept(std::string(error.what()) + "; the result, which is not kept: " + write_config(stored).to_json(-1));
    }
  }

  // A model that cannot be saved gives a warning; the result is stored already.
  void save(const LanguageModel& model, size_t index) {
    const std::string folder = model_folder(runs_[index]);
    std::error_code ignored;
    const bool is_new = !fs::exists(folder, ignored);
    try {
      const auto tokenizer = file_.experiment->tokenizer();
      if (tokenizer) tokenizer->save(folder);
      save_model(model, folder, tokenizer ? std::optional(tokenizer->hash()) : std::nullopt);
    } catch (const std::exception& error) {
      log_warning(run_name(file_.runs()[index]) + ": its model is not saved, its result is kept: " + failure_line(error));
      if (is_new) fs::remove_all(folder, ignored);  // it may have a tokenizer, but no model
      const std::lock_guard lock(mutex_);
      ++outcome_.unsaved;
    }
  }

  StoredRun header(size_t index, torch::Device device) const {
    const PlannedRun& planned = file_.runs()[index];
    const PlannedRate& rate = *planned.rate;
    StoredRun stored;
    stored.key = runs_[index].key;
    stored.kind = file_.kind->name;
    stored.series = rate.series;
    stored.label = rate.label;
    stored.learning_rate = rate.learning_rate;
    stored.seed = planned.seed;
    stored.device = device_name(device.type());
    stored.config = config_of(planned);
    stored.versions = rate.versions;
    return stored;
  }

  void show() {  // call with mutex_ held
    shown_ = now();
    int64_t steps = 0, running = 0;
    for (size_t i = 0; i < runs_.size(); ++i) {
      steps += runs_[i].steps;
      running += runs_[i].stage == Stage::running;
    }
    Progress::Fields fields{{"runs", std::to_string(static_cast<int64_t>(runs_.size()) - left()) + "/" + std::to_string(runs_.size())},
                            {"running", std::to_string(running)}};
    if (!best_.empty()) fields.emplace_back("best", format_number(best_score_, 3) + " (" + best_ + ")");
    progress_->update(steps - before_, std::move(fields));
  }

  const ExperimentFile& file_;
  ResultsFolder& results_;
  const SweepOptions& options_;
  std::vector<SweepRun> runs_;
  const bool has_unfinished_;  // whether the folder of unfinished runs exists
  std::vector<size_t> order_;  // indices of the runs, the most expensive first
  std::mutex mutex_;           // guards runs_ and all members below
  SweepOutcome outcome_;
  std::string broken_, best_;
  double best_score_ = 0, shown_ = 0;
  int64_t before_ = 0;  // steps of the runs that were done before this sweep
  std::unique_ptr<Progress> progress_;
};

}  // namespace

std::vector<torch::Device> sweep_devices(const std::string& text) {
  const auto gpus = static_cast<int>(torch::cuda::is_available() ? torch::cuda::device_count() : 0);
  std::vector<torch::Device> devices;
  if (text == "all" && gpus == 0) parse_device("cuda", "--device all, which is");
  if (text.empty() || text == "all") {
    for (int i = 0; i < gpus; ++i) devices.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(i));
    if (gpus == 0) devices.emplace_back(torch::kCPU);
    return devices;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const torch::Device device = parse_device(text.substr(begin, comma - begin), "each of --device");
    for (const torch::Device& other : devices) {
      if (other == device) throw UsageError("--device names " + device.str() + " twice");
      if (other.type() != device.type()) throw UsageError("--device names the CPU and a GPU, whose results are not the same point's");
    }
    devices.push_back(device);
    begin = comma + 1;
  }
  return devices;
}

SweepOutcome run_sweep(const ExperimentFile& file, ResultsFolder& results, const SweepOptions& options) {
  return Sweep(file, results, options).run();
}

}  // namespace based
