#include "based/train/throughput.h"

#include <array>
#include <cmath>

#include "based/mixers/kit/mixer.h"

namespace based {
namespace {

// Dense rates in TFLOP/s, without sparsity, at the boost clock. `name` is the one that CUDA reports.
struct CardPeak {
  const char* name;
  double bf16, tf32;
};

// Sources: NVIDIA's data sheets, whose figures with sparsity are halved (H100: "NVIDIA H100 Tensor Core GPU", H200, A100, L4, L40, L40S,
// A10, B200), and the white papers of the Ada and Ampere GeForce GPUs (rates with fp32 accumulation). H100 SXM: 1,979 with sparsity is
// 989.4.
constexpr std::array kCardPeaks = {
    CardPeak{"NVIDIA H100 80GB HBM3", 989.4, 494.7},   // SXM
    CardPeak{"NVIDIA H100 PCIe", 756, 378},            //
    CardPeak{"NVIDIA H100 NVL", 835.5, 417.5},         //
    CardPeak{"NVIDIA H200", 989.4, 494.7},             // SXM
    CardPeak{"NVIDIA H200 NVL", 835.5, 417.5},         //
    CardPeak{"NVIDIA GH200 480GB", 989.4, 494.7},      //
    CardPeak{"NVIDIA B200", 2250, 1125},               //
    CardPeak{"NVIDIA A100-SXM4-40GB", 312, 156},       //
    CardPeak{"NVIDIA A100-SXM4-80GB", 312, 156},       //
    CardPeak{"NVIDIA A100-PCIE-40GB", 312, 156},       //
    CardPeak{"NVIDIA A100 80GB PCIe", 312, 156},       //
    CardPeak{"NVIDIA L40S", 362, 183},                 //
    CardPeak{"NVIDIA L40", 181, 90.5},                 //
    CardPeak{"NVIDIA L4", 121, 60},                    //
    CardPeak{"NVIDIA A10", 125, 62.5},                 //
    CardPeak{"NVIDIA GeForce RTX 4090", 165.2, 82.6},  //
    CardPeak{"NVIDIA GeForce RTX 3090", 71, 35.6},     //
};

}  // namespace

std::optional<TrainingFlops> training_flops(const LanguageModel& model, int64_t length) {
  TrainingFlops flops;
  for (const auto& item : model.named_parameters())
    if (item.value().dim() >= 2 && item.value().requires_grad() && item.key() != "position_embedding")
      flops.weights += 6 * static_cast<double>(item.value().numel());
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const auto* mixer = dynamic_cast<const Mixer*>(module.get());
    if (mixer == nullptr) continue;
    const std::optional<double> forward = mixer->sequence_flops(length);
    if (!forward) return std::nullopt;
    flops.sequence += 3 * *forward;
  }
  return flops;
}

std::optional<PeakFlops> peak_flops(const std::string& card, torch::Dtype dtype) {
  const bool half = dtype == torch::kBFloat16 || dtype == torch::kHalf;
  if (!half && dtype != torch::kFloat) return std::nullopt;
  for (const CardPeak& known : kCardPeaks) {
    if (card != known.name) continue;
    const double rate = half ? known.bf16 : known.tf32;
    const char* type = dtype == torch::kBFloat16 ? " bf16" : half ? " fp16" : " TF32";
    return PeakFlops{rate * 1e12, card + type + " dense, " + std::to_string(std::lround(rate)) + " TFLOP/s"};
  }
  return std::nullopt;
}

std::optional<Mfu> model_flops_utilization(const LanguageModel& model, int64_t length, const std::string& card) {
  const std::optional<PeakFlops> peak = peak_flops(card, model.dtype());
  if (!peak) return std::nullopt;
  const std::optional<TrainingFlops> flops = training_flops(model, length);
  if (!flops) return std::nullopt;
  return Mfu{flops->total(), *peak};
}

}  // namespace based
