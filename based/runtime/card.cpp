#include "based/runtime/card.h"

#include <map>

namespace based::runtime {

CardNamer& card_namer_of(torch::DeviceType type) {
  static std::map<torch::DeviceType, CardNamer> namers;
  return namers[type];
}

std::string card_name(torch::Device device) {
  const CardNamer namer = card_namer_of(device.type());
  return namer == nullptr ? "" : namer(device);
}

std::string card_or_cpu(torch::Device device) {
  const std::string card = card_name(device);
  return card.empty() ? "cpu" : card;
}

}  // namespace based::runtime
