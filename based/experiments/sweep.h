// Does the runs of an experiment that are not yet done, on several devices and several at once on each.
#pragma once
#include "based/experiments/experiment.h"
#include "based/experiments/results.h"

namespace based {

struct SweepOptions {
  std::vector<torch::Device> devices;
  int64_t runs_per_device = 0;  // 0: 1 on the CPU, 4 on a GPU
  bool fresh = false;           // do all again; a kept file is replaced when its run is done
  bool retry = false;           // do those that failed again, and, where models are saved, those whose model is not there
  std::string save_models;      // a folder, in which each trained model gets one named by the run's key; empty: not saved
};

struct SweepOutcome {
  int64_t runs = 0, kept = 0, done = 0, failed = 0;  // kept: done before; done: now, by this process or another; failed: of all
  int64_t unsaved = 0;                               // models that this process could not save; their results are kept
  int64_t without_model = 0;  // of the finished runs, where models are to be saved: those whose model is not there, `unsaved` among them
  bool interrupted = false;
};

// "cpu", "cuda", "cuda:0,cuda:1" or "all"; "": all GPUs where there are any, else the CPU. Throws UsageError naming --device.
std::vector<torch::Device> sweep_devices(const std::string& text);

// A run that fails is kept as such, with its reason, and the others go on. A run that another process has claimed is left to it, and waited
// for at the end. Ends at SIGINT, keeping what is finished. Throws Error where results cannot be kept or a device fails.
SweepOutcome run_sweep(const ExperimentFile& file, ResultsFolder& results, const SweepOptions& options);

}  // namespace based
