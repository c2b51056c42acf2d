// Stored states of a server (/v1/states): immutable, with random ids and an owner. To continue one state twice is to use its id twice.
//
// With a folder, a state is on disk before put() returns: `ID.state` is the file of the command line's `based generate --state`, byte for
// byte, and `ID.json` is its StateInfo. A killed server therefore loses no state whose id it has returned. States are read from disk when
// they are used; a byte budget bounds those that stay in memory. Without a folder, all states are in memory, and the budget bounds their
// total size.
//
// All functions may be called by any thread, but those that access the disk must not be called by the engine's thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/core/json.h"
#include "based/generate/sequence.h"

namespace based {

struct StateStoreOptions {
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t owner_bytes = int64_t{4} << 30;
  int64_t owner_states = 100000;
  int64_t ttl = 0;
  int64_t max_ttl = 0;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("memory_bytes", memory_bytes,
          "bytes of stored states in memory; without a state folder, the total of all stored states and responses");
    field("owner_bytes", owner_bytes, "bytes of the stored states of one owner, responses included");
    field("owner_states", owner_states, "stored states of one owner");
    field("ttl", ttl, "seconds after which a stored state is removed, unless the request gives its own; 0: never");
    field("max_ttl", max_ttl, "the longest time to live, in seconds, that a request may ask for; 0: any");
  }
};

struct StateInfo {
  std::string id;      // "st_" and 32 hexadecimal digits, 128 bits from the operating system
  std::string parent;  // the state that it continues; "" if it began with a prompt
  std::string label;
  std::string model_hash, ids_hash;  // TextModel::hash; xxh3-128 of the token ids
  int64_t tokens = 0, bytes = 0;     // the length of its text; the size of its file
  int64_t created = 0, expires = 0;  // seconds since 1970; expires 0: never
  bool uploaded = false;             // it or one of its ancestors was uploaded, so that its tensors need not be those of its tokens
  Json document = nullptr;           // data of the endpoint that stored it, such as a response object

  Json to_json() const;  // the object of /v1/states, without owner and document
};

struct StoredState {
  StateInfo info;
  std::shared_ptr<const SequenceState> sequence;
};

// The fields of a new state that its caller chooses.
struct NewState {
  std::string owner;    // HttpRequest::owner
  std::string id = {};  // from StateStore::new_id(); "": a new one
  std::string parent = {}, label = {};
  std::optional<int64_t> ttl = {};  // seconds; absent: StateStoreOptions::ttl
  bool uploaded = false;
  Json document = nullptr;
};

// Throws UsageError for values out of range.
void check_state_store_options(const StateStoreOptions& options);

struct StateStoreMetrics {
  int64_t states = 0, bytes = 0, memory_bytes = 0;       // now; bytes are those of files and documents
  int64_t stored = 0, removed = 0, expired = 0;          // since the start
  int64_t memory_hits = 0, disk_reads = 0, damaged = 0;  // uses of states in memory and on disk; files that could not be used
};

// The sequence of a state file of unknown origin. Throws ApiError 400 if it is no valid state file, and 409 if it was made by another
// model.
SequenceState parse_state(const std::string& content, const LanguageModel& model, const std::string& model_hash);

class StateStore {
 public:
  static constexpr size_t kMostLabelBytes = 256;

  // `model` must outlive this. `folder`: "" for memory only; it must be an existing folder that no other process uses (FolderLock). `now`
  // returns the seconds since 1970. Files that are damaged are skipped with a warning. Throws Error if the folder cannot be read.
  StateStore(const LanguageModel& model, std::string model_hash, const StateStoreOptions& options, std::string folder = "",
             std::function<int64_t()> now = {});
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Stores a state. Throws ApiError: 413 with the bytes if it exceeds the owner's quota or the memory, 400 for a label or a time to live
  // out of range, 500 if it cannot be written; Error if it is not finite.
  StateInfo put(std::shared_ptr<const SequenceState> sequence, const NewState& about);
  // Stores the content of a state file of unknown origin. Throws as put() and parse_state().
  StateInfo put_file(const std::string& content, NewState about);

  // These throw ApiError 404 if there is no such state or if another owner has it, with the same message. `param` is the name of the
  // request's field in errors.
  StoredState get(const std::string& owner, const std::string& id, const std::string& param = "state");  // 409: of another model
  // Also the document, which the infos of the other functions lack.
  StateInfo info(const std::string& owner, const std::string& id, const std::string& param = "state");
  std::string content(const std::string& owner, const std::string& id);  // the bytes of its state file
  void remove(const std::string& owner, const std::string& id);
  std::vector<StateInfo> list(const std::string& owner);  // the oldest first

  StateStoreMetrics metrics();
  const std::string& model_hash() const;
  static std::string new_id();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace based
