#include "based/serve/states/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <span>

#include "based/core/files.h"
#include "based/serve/protocol/api_error.h"
#include "based/serve/protocol/identifiers.h"

namespace based {
namespace {

constexpr std::string_view kSealMagic = "BSL1";
constexpr size_t kNonceBytes = 12, kTagBytes = 16, kSealHead = kSealMagic.size() + 1;
constexpr size_t kMostSealedBytes = size_t{1} << 30;  // below the limit of EVP's int lengths

using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }
unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

void require_success(int result) {
  if (result != 1) throw Error("the system's cryptographic library failed");
}

// The authenticated data beside the ciphertext. The owner's length separates it from the hash.
std::string context_of(std::string_view head, const std::string& owner, const std::string& model_hash) {
  return std::string(head) + std::to_string(owner.size()) + ":" + owner + model_hash;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string encode_base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // EVP adds a zero
  const int size = EVP_EncodeBlock(bytes_of(text), bytes_of(bytes), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

bool decode_base64(std::string_view text, std::string& bytes) {
  const auto is_digit = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '/'; };
  if (text.size() % 4 != 0 || text.size() > 2 * kMostSealedBytes - 4) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const std::string_view digits = text.substr(0, text.size() - padding);
  if (!std::all_of(digits.begin(), digits.end(), is_digit)) return false;
  bytes.assign(text.size() / 4 * 3, '\0');
  if (!text.empty() && EVP_DecodeBlock(bytes_of(bytes), bytes_of(text), static_cast<int>(text.size())) < 0) return false;
  bytes.erase(bytes.size() - padding);
  // The bits of the last digit that belong to no byte must be zero, so that bytes have one text.
  return padding == 0 || encode_base64(std::string_view(bytes).substr(bytes.size() + padding - 3)) == text.substr(text.size() - 4);
}

StateSeal::StateSeal() {
  const std::string key = random_bytes(key_.size());
  std::copy(key.begin(), key.end(), key_.begin());
}

StateSeal::StateSeal(const std::string& key_file) {
  std::string content = read_file(key_file, 4096);
  if (content.size() != key_.size()) {
    while (!content.empty() && std::isspace(static_cast<unsigned char>(content.back())) != 0) content.pop_back();
    const bool is_hex = std::all_of(content.begin(), content.end(), [](char c) { return hex_digit(c) >= 0; });
    if (content.size() != 2 * key_.size() || !is_hex)
      throw UsageError(key_file + ": a key is 32 bytes or 64 hexadecimal digits, such as the output of `openssl rand -hex 32`");
    for (size_t i = 0; i < key_.size(); ++i)
      key_[i] = static_cast<unsigned char>(16 * hex_digit(content[2 * i]) + hex_digit(content[2 * i + 1]));
  } else {
    std::copy(content.begin(), content.end(), key_.begin());
  }
  OPENSSL_cleanse(content.data(), content.size());
}

StateSeal::~StateSeal() { OPENSSL_cleanse(key_.data(), key_.size()); }

std::string StateSeal::seal(const Opened& state, const std::string& owner, const std::string& model_hash) const {
  if (state.file.size() > kMostSealedBytes)
    throw Error("a state of " + std::to_string(state.file.size()) + " bytes is too large to be sealed");
  std::string sealed(kSealMagic);
  sealed += static_cast<char>(state.uploaded ? 1 : 0);
  const std::string context = context_of(sealed, owner, model_hash), nonce = random_bytes(kNonceBytes);
  sealed += nonce;
  const CipherContext cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  std::string encrypted(state.file.size(), '\0'), tag(kTagBytes, '\0');
  int size = 0;
  require_success(EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key_.data(), bytes_of(nonce)));
  require_success(EVP_EncryptUpdate(cipher.get(), nullptr, &size, bytes_of(std::string_view(context)), static_cast<int>(context.size())));
  require_success(EVP_EncryptUpdate(cipher.get(), bytes_of(encrypted), &size, bytes_of(std::string_view(state.file)),
                                    static_cast<int>(state.file.size())));
  require_success(EVP_EncryptFinal_ex(cipher.get(), bytes_of(encrypted) + size, &size));
  require_success(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, tag.data()));
  return encode_base64(sealed + encrypted + tag);
}

StateSeal::Opened StateSeal::open(std::string_view text, const std::string& owner, const std::string& model_hash,
                                  const std::string& param) const {
  const auto refuse = [&param]() {
    return ApiError::invalid(param, param + ": is not a state that this server sealed for this key and model, or was changed");
  };
  std::string sealed;
  if (!decode_base64(text, sealed) || sealed.size() < kSealHead + kNonceBytes + kTagBytes || !sealed.starts_with(kSealMagic))
    throw refuse();
  const std::string_view all = sealed, head = all.substr(0, kSealHead), nonce = all.substr(kSealHead, kNonceBytes);
  const std::string_view encrypted = all.substr(kSealHead + kNonceBytes, all.size() - kSealHead - kNonceBytes - kTagBytes);
  std::string tag(all.substr(all.size() - kTagBytes));
  if (encrypted.size() > kMostSealedBytes) throw refuse();
  const std::string context = context_of(head, owner, model_hash);
  const CipherContext cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  Opened opened;
  opened.file.assign(encrypted.size(), '\0');
  int size = 0;
  require_success(EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key_.data(), bytes_of(nonce)));
  require_success(EVP_DecryptUpdate(cipher.get(), nullptr, &size, bytes_of(std::string_view(context)), static_cast<int>(context.size())));
  require_success(EVP_DecryptUpdate(cipher.get(), bytes_of(opened.file), &size, bytes_of(encrypted), static_cast<int>(encrypted.size())));
  require_success(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, tag.data()));
  if (EVP_DecryptFinal_ex(cipher.get(), bytes_of(opened.file) + size, &size) != 1) throw refuse();
  opened.uploaded = head.back() != 0;
  return opened;
}

}  // namespace based
