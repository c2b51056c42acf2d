#include "apps/bench_report.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <vector>

#include "apps/command.h"
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/gpu_kernels_choice.h"

namespace based::apps {
namespace {

std::string utc_now() {
  std::array<char, 32> text{};
  const std::time_t now = std::time(nullptr);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text.data();
}

// Says that the figures are not those of the GPU's fastest kernels.
void add_restriction(Json& report) {
  const std::string name = kernels::gpu_kernels_choice().name;
  if (!name.empty()) report["kernels"] = name;
}

}  // namespace

std::string today() { return utc_now().substr(0, 10); }

Json gpu_description(torch::Device device) {
  const std::string query = "nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem --format=csv,noheader,nounits -i " +
                            std::to_string(device.index());
  std::string line(256, '\0');
  FILE* pipe = popen(query.c_str(), "r");
  if (pipe == nullptr || std::fgets(line.data(), static_cast<int>(line.size()), pipe) == nullptr) line = "unknown, unknown, 0, 0";
  if (pipe != nullptr) pclose(pipe);
  std::vector<std::string> fields;
  std::stringstream stream(line.c_str());
  for (std::string field; std::getline(stream, field, ',');) {
    const size_t begin = field.find_first_not_of(' '), end = field.find_last_not_of(" \n");
    fields.push_back(begin == std::string::npos ? "" : field.substr(begin, end - begin + 1));
  }
  fields.resize(4);
  return {{"device", fields[0]},
          {"driver", fields[1]},
          {"clocks_mhz", {{"sm", std::atoi(fields[2].c_str())}, {"memory", std::atoi(fields[3].c_str())}}}};
}

std::string device_in_words(torch::Device device) {
  if (device.is_cuda()) return gpu_description(device)["device"].get<std::string>();
  const int threads = torch::get_num_threads();
  return "CPU, " + std::to_string(threads) + (threads == 1 ? " thread, " : " threads, ") + kernels::cpu::isa_name(kernels::cpu::isa());
}

Json report_head(bench::Context& context, const std::string& commit) {
  Json report{{"version", version}, {"commit", commit}, {"date", utc_now()}};
  if (context.device.is_cuda()) {
    report.update(gpu_description(context.device));
    add_restriction(report);
    report["copy_gb_s"] = context.ceilings.copy_gb_s();
  } else {
    report["device"] = "cpu";
    report["threads"] = torch::get_num_threads();
    report["kernels"] = kernels::cpu::isa_name(kernels::cpu::isa());
    report["read_gb_s"] = context.ceilings.read_gb_s();
    report["gemm_fp32_gflops"] = context.ceilings.gemm_gflops(torch::kFloat);
  }
  report["gemm_bf16_gflops"] = context.ceilings.gemm_gflops(torch::kBFloat16);
  return report;
}

}  // namespace based::apps
