#include "based/experiments/message.h"

#include <cmath>
#include <cstring>

#include "based/core/error.h"

namespace based {
namespace {

class BitWriter {
 public:
  void put(uint32_t value, int bits) {
    for (int bit = 0; bit < bits; ++bit, ++size_) {
      if (size_ % 8 == 0) bytes_.push_back(std::byte{0});
      bytes_.back() |= std::byte(value >> bit & 1) << (size_ % 8);
    }
  }
  StateMessage done() && { return {std::move(bytes_), size_}; }

 private:
  std::vector<std::byte> bytes_;
  int64_t size_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const StateMessage& message) : message_(message) {}
  uint32_t get(int bits) {
    if (at_ + bits > message_.bits) throw Error("the message of a state is too short");
    uint32_t value = 0;
    for (int bit = 0; bit < bits; ++bit, ++at_)
      value |= static_cast<uint32_t>(message_.bytes[static_cast<size_t>(at_ / 8)] >> (at_ % 8) & std::byte{1}) << bit;
    return value;
  }
  bool at_end() const { return at_ == message_.bits; }

 private:
  const StateMessage& message_;
  int64_t at_ = 0;
};

uint32_t word_of(float value) {
  uint32_t word = 0;
  std::memcpy(&word, &value, sizeof word);
  return word;
}
float float_of(uint32_t word) {
  float value = 0;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// Rounds to nearest, ties to even.
uint32_t bf16_of(float value) {
  const uint32_t word = word_of(value);
  return (word + 0x7fffu + (word >> 16 & 1)) >> 16;
}

int largest_of(int bits) { return (1 << (bits - 1)) - 1; }  // integers are −largest … largest

std::vector<torch::Tensor> sent_tensors(const ModelState& state) {
  const int64_t seen = state.position()[0].item<int64_t>();
  std::vector<torch::Tensor> all;
  for (const MixerState& layer : state.layers())
    for (const StateTensor& tensor : layer.tensors()) {
      const torch::Tensor one = tensor.value.narrow(0, 0, 1);
      all.push_back(tensor.grows ? one.narrow(1, 0, std::min(seen, one.size(1))) : one);
    }
  return all;
}

}  // namespace

bool message_width(int bits_each) { return bits_each == 32 || bits_each == 16 || (bits_each >= 2 && bits_each <= 8); }

StateMessage write_message(const ModelState& state, int bits_each) {
  BASED_ASSERT(message_width(bits_each));
  BitWriter out;
  for (const torch::Tensor& tensor : sent_tensors(state)) {
    const torch::Tensor flat = tensor.to(torch::kCPU, torch::kFloat32).contiguous().flatten();
    const float* values = flat.const_data_ptr<float>();
    const auto count = flat.numel();
    float scale = 0;
    if (bits_each <= 8) {
      for (int64_t i = 0; i < count; ++i) scale = std::max(scale, std::abs(values[i]));
      scale /= static_cast<float>(largest_of(bits_each));
      out.put(word_of(scale), 32);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (bits_each == 32) {
        out.put(word_of(values[i]), 32);
      } else if (bits_each == 16) {
        out.put(bf16_of(values[i]), 16);
      } else {
        const auto whole = static_cast<int>(scale > 0 ? std::lround(values[i] / scale) : 0);
        out.put(static_cast<uint32_t>(whole + largest_of(bits_each)), bits_each);
      }
    }
  }
  return std::move(out).done();
}

ModelState read_message(const StateMessage& message, const ModelState& like, int bits_each) {
  ModelState state = like.extract(0);
  BitReader in(message);
  for (torch::Tensor& tensor : sent_tensors(state)) {
    torch::Tensor flat = torch::empty({tensor.numel()}, torch::kFloat32);
    auto* values = flat.data_ptr<float>();
    const float scale = bits_each <= 8 ? float_of(in.get(32)) : 0;
    for (int64_t i = 0; i < flat.numel(); ++i) {
      if (bits_each == 32) {
        values[i] = float_of(in.get(32));
      } else if (bits_each == 16) {
        values[i] = float_of(in.get(16) << 16);
      } else {
        values[i] = scale * static_cast<float>(static_cast<int>(in.get(bits_each)) - largest_of(bits_each));
      }
    }
    tensor.copy_(flat.view_as(tensor));
  }
  if (!in.at_end()) throw Error("the message of a state is too long");
  return state;
}

}  // namespace based
