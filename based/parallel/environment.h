// The processes of a training job: which rank this process is, and which devices a command line asks for.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "based/runtime/torch.h"

namespace based {

using Variables = std::map<std::string, std::string>;  // environment variables
Variables process_variables();

struct RankEnvironment {
  int64_t rank = 0, world = 1;
  int64_t local_rank = 0;   // number among the ranks of this host
  int64_t local_world = 0;  // number of ranks of this host; 0: unknown
  std::string address;      // host and port of the job's store
  int port = 0;
  bool store_is_served = false;  // by torchrun's agent or by launch_ranks
  bool serves_store = false;     // whether this rank must serve it: rank 0, unless it is served
  bool launched = false;         // by launch_ranks, which watches the ranks
  // torchrun's number of restarts, and the number of Slurm's step; each attempt has its own keys in the store
  std::string attempt = "0";
};

// From torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) or, if RANK, WORLD_SIZE and LOCAL_RANK are unset,
// those of a step of Slurm, which srun starts (SLURM_STEP_ID, SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; before Slurm 14 SLURM_STEPID).
// There MASTER_ADDR defaults to the first host of SLURM_STEP_NODELIST (else SLURM_JOB_NODELIST), and MASTER_PORT to a port computed from
// the numbers of the job and of the step, so that steps that run at once differ in it. None: the process is no rank, as in a step of one
// task and in a batch script, which runs once and outside of any step. Throws UsageError, naming the variable, if one is missing,
// malformed or contradicts another.
std::optional<RankEnvironment> rank_environment(const Variables& variables = process_variables());

// The first host of a list in Slurm's notation: "gpu[07-09,12],cpu1" gives "gpu07". Throws UsageError, naming the variable `name` that has
// the list, if it is malformed.
std::string first_slurm_host(const std::string& list, const std::string& name);

// The time that a collective may take: BASED_COLLECTIVE_TIMEOUT, in seconds, or 120 s. Throws UsageError unless it is a number from 1 to
// 86400.
std::chrono::seconds collective_timeout(const Variables& variables = process_variables());

struct DeviceRequest {
  bool cpu = false;   // ranks on the CPU, else one GPU a rank
  int64_t count = 1;  // number of ranks on this host; 0: as many as were started
};

struct GpuSupport {
  bool built = false;  // whether the program has collectives on GPUs
  int64_t count = 0;   // GPUs of this host that it can use
};
GpuSupport gpu_support();

// From "N" GPUs, "all" GPUs of this host, or "cpu:N" ranks on the CPU. Throws UsageError for other text and for more GPUs than there are.
DeviceRequest parse_devices(const std::string& text, const GpuSupport& gpus = gpu_support());

// The device of a rank: the CPU, or the GPU with the rank's local number. Slurm may show each rank one GPU of its own: then it is that one.
// Throws UsageError if LOCAL_RANK has no GPU, or if the requested number is not that of the ranks on this host.
torch::Device device_of_rank(const RankEnvironment& rank, const DeviceRequest& request, const GpuSupport& gpus = gpu_support());

}  // namespace based
