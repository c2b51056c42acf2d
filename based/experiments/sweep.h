// Executes the runs of an experiment that are not done yet, on several devices, and several at once on each device.
#pragma once
#include "based/experiments/experiment.h"
#include "based/experiments/results.h"

namespace based {

struct SweepOptions {
  std::vector<torch::Device> devices;
  int64_t runs_per_device = 0;  // 0: 1 on the CPU, 4 on a GPU
  bool fresh = false;           // repeat all runs; a stored result is replaced when its run is done
  bool retry = false;           // repeat failed runs and, if models are saved, runs whose model is missing
  double time_limit = 0;        // seconds, after which the sweep stops as at a signal; 0: none
  std::string unfinished = {};  // folder for the states of runs that can continue, each in a subfolder named by the run's key
  std::string commit = {};      // RunHooks::commit
  std::string save_models;      // folder for the trained models, each in a subfolder named by the run's key; empty: not saved
};

struct SweepOutcome {
  // runs: all; kept: done before this sweep; done: done during it, by this process or another; failed: of all, before or during it.
  int64_t runs = 0, kept = 0, done = 0, failed = 0;
  int64_t unsaved = 0;        // models that this process could not save; the runs' results are stored nevertheless
  int64_t without_model = 0;  // if models are saved: finished runs whose model is missing, `unsaved` included
  bool interrupted = false;
};

// Parses "cpu", "cuda", "cuda:0,cuda:1" or "all"; "": all GPUs if there are any, else the CPU. Throws UsageError naming --device.
std::vector<torch::Device> sweep_devices(const std::string& text);

// A failed run is stored with its reason, and the sweep continues. A run that another process has claimed is left to that process, and the
// sweep waits for it at the end. Stops at a signal or the time limit; finished runs stay stored, and runs that can continue later keep
// their states in options.unfinished. Throws Error if results cannot be stored, a device fails or a run throws CannotRun, and UsageError
// for several runs at once if the kind executes one at a time.
SweepOutcome run_sweep(const ExperimentFile& file, ResultsFolder& results, const SweepOptions& options);

}  // namespace based
