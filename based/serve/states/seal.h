// States that a server returns to the client instead of storing them, as a response's `encrypted_content`. A sealed state is encrypted and
// authenticated by AES-256-GCM with the server's key, and bound to its owner and to the model: it can be neither read nor changed by
// clients, nor used by another owner.
//
//   base64( "BSL1" | u8 flags | 12 bytes nonce | ciphertext of the state file | 16 bytes tag )
// The tag also authenticates the first five bytes, the owner and the model's hash.
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace based {

std::string encode_base64(std::string_view bytes);
// The inverse; strict: padding is required, other characters are refused, and unused bits are zero. Returns false for text that is no
// base64.
bool decode_base64(std::string_view text, std::string& bytes);

class StateSeal {
 public:
  StateSeal();  // a random key: sealed states cannot be opened after a restart, nor by other servers
  // The file's content is 32 bytes, or their 64 hexadecimal digits and white space at the end. Throws UsageError that names the file.
  explicit StateSeal(const std::string& key_file);
  ~StateSeal();  // overwrites the key
  StateSeal(const StateSeal&) = delete;
  StateSeal& operator=(const StateSeal&) = delete;

  struct Opened {
    std::string file;       // the content of a state file
    bool uploaded = false;  // StateInfo::uploaded
  };
  std::string seal(const Opened& state, const std::string& owner, const std::string& model_hash) const;
  // Throws ApiError 400 that names `param` if the text was not sealed by this key for this owner and model, or was changed.
  Opened open(std::string_view text, const std::string& owner, const std::string& model_hash, const std::string& param) const;

 private:
  std::array<unsigned char, 32> key_{};
};

}  // namespace based
