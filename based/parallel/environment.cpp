#include "based/parallel/environment.h"

#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "based/core/error.h"
#include "based/core/text.h"
#include "based/parallel/gpu_collectives.h"

namespace based {
namespace {

constexpr int64_t kMostRanks = 1 << 20;
constexpr int kFirstSlurmPort = 15000, kSlurmPorts = 15000;  // below the ports that Linux gives to outgoing connections
constexpr int64_t kPortsBetweenSteps = 7919;                 // so that a job's second step has not the port of the next job's first one
constexpr int64_t kSlurmSteps = 0xfffffff0;                  // Slurm gives greater numbers to batch scripts and interactive shells

std::optional<int64_t> whole_number(const std::string& text, int64_t least, int64_t most) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) return std::nullopt;
  return number;
}

bool is_set(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found != variables.end() && !found->second.empty();
}

// `because` names the variable that makes `name` necessary.
std::string required(const Variables& variables, const std::string& name, const std::string& because) {
  if (!is_set(variables, name)) throw UsageError(name + " is not set, but " + because + " is: a rank needs both; or unset " + because);
  return variables.at(name);
}

int64_t required_number(const Variables& variables, const std::string& name, const std::string& because, int64_t least, int64_t most) {
  const std::string text = required(variables, name, because);
  const auto number = whole_number(text, least, most);
  if (!number)
    throw UsageError(name + " must be a number from " + std::to_string(least) + " to " + std::to_string(most) + ", got " + in_quotes(text));
  return *number;
}

void require_below(int64_t number, const std::string& name, int64_t limit, const std::string& limit_name) {
  if (number >= limit)
    throw UsageError(name + "=" + std::to_string(number) + " must be below " + limit_name + "=" + std::to_string(limit) +
                     ": ranks are numbered from 0");
}

RankEnvironment from_torchrun(const Variables& variables, const std::string& because) {
  RankEnvironment result;
  result.world = required_number(variables, "WORLD_SIZE", because, 1, kMostRanks);
  result.rank = required_number(variables, "RANK", because, 0, kMostRanks);
  result.local_rank = required_number(variables, "LOCAL_RANK", because, 0, kMostRanks);
  require_below(result.rank, "RANK", result.world, "WORLD_SIZE");
  require_below(result.local_rank, "LOCAL_RANK", result.world, "WORLD_SIZE");
  if (is_set(variables, "LOCAL_WORLD_SIZE")) {
    result.local_world = required_number(variables, "LOCAL_WORLD_SIZE", because, 1, result.world);
    require_below(result.local_rank, "LOCAL_RANK", result.local_world, "LOCAL_WORLD_SIZE");
  }
  result.address = required(variables, "MASTER_ADDR", because);
  result.port = static_cast<int>(required_number(variables, "MASTER_PORT", because, 1, 65535));
  const auto agent = variables.find("TORCHELASTIC_USE_AGENT_STORE");
  result.store_is_served = agent != variables.end() && agent->second == "True";
  result.serves_store = result.rank == 0 && !result.store_is_served;
  result.launched = is_set(variables, "BASED_LAUNCHED");
  if (is_set(variables, "TORCHELASTIC_RESTART_COUNT")) result.attempt = variables.at("TORCHELASTIC_RESTART_COUNT");
  return result;
}

// The first of these variables that is set, else the first name.
std::string first_set(const Variables& variables, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (is_set(variables, name)) return name;
  return *names.begin();
}

// The variable with the number of the step that this process belongs to. A batch script has the variables of a task, but no such step.
std::string slurm_step(const Variables& variables) { return first_set(variables, {"SLURM_STEP_ID", "SLURM_STEPID"}); }

bool is_in_slurm_step(const Variables& variables) {
  const std::string name = slurm_step(variables);
  return is_set(variables, name) && !whole_number(variables.at(name), kSlurmSteps, UINT32_MAX);
}

std::optional<RankEnvironment> from_slurm(const Variables& variables, const std::string& because) {
  RankEnvironment result;
  result.world = required_number(variables, "SLURM_NTASKS", because, 1, kMostRanks);
  if (result.world == 1) return std::nullopt;
  result.rank = required_number(variables, "SLURM_PROCID", because, 0, kMostRanks);
  result.local_rank = required_number(variables, "SLURM_LOCALID", because, 0, kMostRanks);
  require_below(result.rank, "SLURM_PROCID", result.world, "SLURM_NTASKS");
  require_below(result.local_rank, "SLURM_LOCALID", result.world, "SLURM_NTASKS");
  if (is_set(variables, "MASTER_ADDR")) {
    result.address = variables.at("MASTER_ADDR");
  } else {
    const std::string name = first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
    result.address = first_slurm_host(required(variables, name, because), name);
  }
  const int64_t step = required_number(variables, slurm_step(variables), because, 0, kSlurmSteps - 1);
  result.attempt = std::to_string(step);
  if (is_set(variables, "MASTER_PORT")) {
    result.port = static_cast<int>(required_number(variables, "MASTER_PORT", because, 1, 65535));
  } else {
    const int64_t job = required_number(variables, "SLURM_JOB_ID", because, 0, int64_t{1} << 40);
    result.port = kFirstSlurmPort + static_cast<int>((job + step * kPortsBetweenSteps) % kSlurmPorts);
  }
  result.serves_store = result.rank == 0;
  return result;
}

std::string gpus_there(int64_t count) { return count == 1 ? "1 GPU is there" : std::to_string(count) + " GPUs are there"; }

}  // namespace

Variables process_variables() {
  Variables result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) result[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return result;
}

std::optional<RankEnvironment> rank_environment(const Variables& variables) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"})
    if (is_set(variables, name)) return from_torchrun(variables, name);
  if (is_in_slurm_step(variables)) return from_slurm(variables, slurm_step(variables));
  return std::nullopt;
}

std::string first_slurm_host(const std::string& list, const std::string& name) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t end = list.find(']', i);
    if (end == std::string::npos) throw UsageError(name + ": a [ without ] in " + in_quotes(list));
    host += list.substr(i + 1, list.find_first_of(",-]", i) - i - 1);
    i = end;
  }
  if (host.empty()) throw UsageError(name + " names no host: " + in_quotes(list));
  return host;
}

std::chrono::seconds collective_timeout(const Variables& variables) {
  const char* const name = "BASED_COLLECTIVE_TIMEOUT";
  if (!is_set(variables, name)) return std::chrono::seconds(120);
  return std::chrono::seconds(required_number(variables, name, name, 1, 86400));
}

GpuSupport gpu_support() {
  const bool usable = gpu_collectives() != nullptr && torch::cuda::is_available();
  return {gpu_collectives() != nullptr, usable ? static_cast<int64_t>(torch::cuda::device_count()) : 0};
}

DeviceRequest parse_devices(const std::string& text, const GpuSupport& gpus) {
  if (text.rfind("cpu:", 0) == 0) {
    const auto count = whole_number(text.substr(4), 1, 64);
    if (!count) throw UsageError("--devices cpu:N needs a number from 1 to 64, got " + in_quotes(text));
    return {true, *count};
  }
  const auto count = text == "all" ? std::max<int64_t>(gpus.count, 1) : whole_number(text, 1, kMostRanks);
  if (!count) throw UsageError("--devices must be a number of GPUs, all, or cpu:N for N ranks on the CPU, got " + in_quotes(text));
  if (!gpus.built)
    throw UsageError("--devices " + text + ": this build has no CUDA; build with -DBASED_WITH_CUDA=ON, or use --devices cpu:N");
  if (*count > gpus.count) throw UsageError("--devices " + text + ": " + gpus_there(gpus.count) + " on this host");
  return {false, *count};
}

torch::Device device_of_rank(const RankEnvironment& rank, const DeviceRequest& request, const GpuSupport& gpus) {
  if (rank.local_world > 0 && request.count > 0 && request.count != rank.local_world)
    throw UsageError("--devices asks for " + std::to_string(request.count) +
                     " ranks, but LOCAL_WORLD_SIZE=" + std::to_string(rank.local_world) + " are started already; leave --devices out");
  if (request.cpu) return torch::kCPU;
  const bool own_gpu = gpus.count == 1 && rank.local_world == 0;
  if (own_gpu) return {torch::kCUDA, 0};
  if (rank.local_rank >= gpus.count)
    throw UsageError("LOCAL_RANK=" + std::to_string(rank.local_rank) + " has no GPU: " + gpus_there(gpus.count) + " on this host");
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(rank.local_rank)};
}

}  // namespace based
