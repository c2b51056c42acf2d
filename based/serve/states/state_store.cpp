#include "based/serve/states/state_store.h"

#include <list>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/log.h"
#include "based/core/state_file.h"
#include "based/core/temporaries.h"
#include "based/core/text.h"
#include "based/core/utf8.h"
#include "based/serve/protocol/api_error.h"
#include "based/serve/protocol/identifiers.h"

namespace based {
namespace {

constexpr uint64_t kMostStateFileBytes = uint64_t{1} << 40;
constexpr size_t kIdDigits = 32;

bool is_state_id(std::string_view id) {
  return id.size() == 3 + kIdDigits && id.starts_with("st_") && id.find_first_not_of("0123456789abcdef", 3) == std::string_view::npos;
}

std::string hash_of(const std::vector<int64_t>& ids) { return xxh3_128(std::as_bytes(std::span(ids))).hex(); }

Json record_json(const StateInfo& info, const std::string& owner) {
  Json json = info.to_json();
  json["uploaded"] = info.uploaded;
  json["owner"] = owner;
  json["document"] = info.document;
  return json;
}

// Throws Json::exception for missing fields and wrong types.
StateInfo info_of(const Json& json) {
  StateInfo info;
  info.id = json.at("id").get<std::string>();
  info.parent = json.at("parent").is_null() ? "" : json.at("parent").get<std::string>();
  info.label = json.at("label").get<std::string>();
  info.model_hash = json.at("model_hash").get<std::string>();
  info.ids_hash = json.at("ids_hash").get<std::string>();
  info.tokens = json.at("position").get<int64_t>();
  info.bytes = json.at("bytes").get<int64_t>();
  info.created = json.at("created").get<int64_t>();
  info.expires = json.at("expires").is_null() ? 0 : json.at("expires").get<int64_t>();
  info.uploaded = json.at("uploaded").get<bool>();
  info.document = json.at("document");
  return info;
}

}  // namespace

void check_state_store_options(const StateStoreOptions& options) {
  const auto check = [](int64_t value, const char* name) {
    if (value < 0) throw UsageError(std::string("stored states: ") + name + " must not be negative, got " + std::to_string(value));
  };
  check(options.memory_bytes, "memory_bytes");
  check(options.owner_bytes, "owner_bytes");
  check(options.owner_states, "owner_states");
  check(options.ttl, "ttl");
  check(options.max_ttl, "max_ttl");
}

Json StateInfo::to_json() const {
  return {{"id", id},
          {"object", "state"},
          {"created", created},
          {"expires", expires == 0 ? Json(nullptr) : Json(expires)},
          {"parent", parent.empty() ? Json(nullptr) : Json(parent)},
          {"label", label},
          {"position", tokens},
          {"bytes", bytes},
          {"model_hash", model_hash},
          {"ids_hash", ids_hash}};
}

SequenceState parse_state(const std::string& content, const LanguageModel& model, const std::string& model_hash) {
  StateSnapshot snapshot;
  try {
    snapshot = parse_state_file(std::as_bytes(std::span(content)), "the state file");
  } catch (const Error& error) {
    throw ApiError::invalid("", error.what());
  }
  if (snapshot.model_hash != model_hash)
    throw ApiError::conflict("", "the state file was made by model " + printable(snapshot.model_hash) + ", not by this one, " + model_hash);
  try {
    return sequence_of(snapshot, model, "the state file");
  } catch (const Error& error) {
    throw ApiError::invalid("", error.what());
  }
}

class StateStore::Impl {
 public:
  Impl(const LanguageModel& model, std::string model_hash, const StateStoreOptions& options, std::string folder,
       std::function<int64_t()> now)
      : model_(model),
        model_hash_(std::move(model_hash)),
        options_(options),
        folder_(std::move(folder)),
        now_(now ? std::move(now) : unix_seconds) {
    check_state_store_options(options_);
    if (!folder_.empty()) read_folder();
  }

  // `content`: of the state's file.
  StateInfo put(const std::shared_ptr<const SequenceState>& sequence, const std::string& content, const NewState& about) {
    StateInfo info;
    info.id = about.id.empty() ? new_id() : about.id;
    info.parent = about.parent;
    info.label = about.label;
    info.model_hash = model_hash_;
    info.ids_hash = hash_of(sequence->ids);
    info.tokens = static_cast<int64_t>(sequence->ids.size());
    info.bytes = static_cast<int64_t>(content.size());
    info.created = now_();
    info.uploaded = about.uploaded;
    info.document = about.document;
    info.expires = expiry(about);
    const int64_t bytes = counted_bytes(info);
    reserve(about.owner, bytes);
    try {
      BASED_ASSERT(is_state_id(info.id));
      if (!folder_.empty()) {
        write_file_atomic(state_path(info.id), content);
        write_file_atomic(record_path(info.id), dump_json(record_json(info, about.owner)));
      }
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      release(about.owner, bytes);
      if (!folder_.empty()) remove_files(info.id);
      log_warning(std::string("stored states: ") + error.what());  // it names files of the server
      throw ApiError::failed("the state could not be stored; the server's log has the reason");
    }
    const std::lock_guard lock(mutex_);
    ++metrics_.stored;
    Record& record = add(info, about.owner, bytes);
    keep_in_memory(record, sequence);
    return info;
  }

  void check_label(const std::string& label) const {
    if (label.size() > kMostLabelBytes || !is_valid_utf8(label) || has_control_characters(label))
      throw ApiError::invalid("label",
                              "label: must be UTF-8 of at most " + std::to_string(kMostLabelBytes) + " bytes without control characters");
  }

  StoredState get(const std::string& owner, const std::string& id, const std::string& param) {
    StoredState stored;
    {
      const std::lock_guard lock(mutex_);
      Record& record = require(owner, id, param);
      if (record.info.model_hash != model_hash_)
        throw ApiError::conflict(
            param, param + ": " + id + " was made by model " + printable(record.info.model_hash) + ", not by this one, " + model_hash_);
      stored = {record.info, record.sequence};
      if (stored.sequence) {
        ++metrics_.memory_hits;
        used_.splice(used_.end(), used_, record.place);
        return stored;
      }
    }
    try {
      stored.sequence = std::make_shared<const SequenceState>(load_sequence(state_path(id), model_, model_hash_));
    } catch (const Error& error) {
      const std::lock_guard lock(mutex_);
      require(owner, id, param);  // it may have been removed in the meantime
      log_warning(std::string("stored states: ") + error.what());
      ++metrics_.damaged;
      throw ApiError::not_found(param, param + ": the file of " + id + " is damaged");
    }
    const std::lock_guard lock(mutex_);
    ++metrics_.disk_reads;
    if (const auto found = records_.find(id); found != records_.end()) keep_in_memory(found->second, stored.sequence);
    return stored;
  }

  StateInfo info(const std::string& owner, const std::string& id, const std::string& param) {
    StateInfo info;
    {
      const std::lock_guard lock(mutex_);
      info = require(owner, id, param).info;
    }
    if (folder_.empty()) return info;
    try {
      return info_of(parse_json(read_regular_file(record_path(id)), record_path(id)));
    } catch (const std::exception& error) {
      log_warning(std::string("stored states: ") + error.what());
      throw ApiError::not_found(param, param + ": the file of " + id + " is damaged");
    }
  }

  std::string content(const std::string& owner, const std::string& id) {
    std::shared_ptr<const SequenceState> sequence;
    {
      const std::lock_guard lock(mutex_);
      sequence = require(owner, id, "id").sequence;
    }
    if (folder_.empty()) return sequence_file_content(*sequence, model_hash_, id);
    return read_regular_file(state_path(id), kMostStateFileBytes);
  }

  void remove(const std::string& owner, const std::string& id) {
    const std::lock_guard lock(mutex_);
    require(owner, id, "id");
    erase(id);
    ++metrics_.removed;
  }

  std::vector<StateInfo> list(const std::string& owner) {
    const std::lock_guard lock(mutex_);
    remove_expired();
    std::map<std::pair<int64_t, int64_t>, StateInfo> sorted;
    for (const auto& [id, record] : records_)
      if (record.owner == owner) sorted.emplace(std::pair(record.info.created, record.number), record.info);
    std::vector<StateInfo> infos;
    infos.reserve(sorted.size());
    for (auto& [when, info] : sorted) infos.push_back(std::move(info));
    return infos;
  }

  StateStoreMetrics metrics() {
    const std::lock_guard lock(mutex_);
    remove_expired();
    StateStoreMetrics metrics = metrics_;
    metrics.states = static_cast<int64_t>(records_.size());
    metrics.bytes = all_.bytes;
    metrics.memory_bytes = memory_bytes_;
    return metrics;
  }

  const LanguageModel& model() const { return model_; }
  const std::string& model_hash() const { return model_hash_; }

 private:
  struct Record {
    StateInfo info;  // without its document if that is on disk
    std::string owner;
    int64_t counted = 0;                            // counted_bytes()
    int64_t number = 0;                             // in the order of their creation
    std::shared_ptr<const SequenceState> sequence;  // null: on disk
    std::list<std::string>::iterator place;         // in used_, if `sequence` is set
  };
  struct Total {
    int64_t states = 0, bytes = 0;
  };

  std::string state_path(const std::string& id) const { return path_in(folder_, id + ".state"); }
  std::string record_path(const std::string& id) const { return path_in(folder_, id + ".json"); }

  int64_t expiry(const NewState& about) const {
    const int64_t seconds = about.ttl.value_or(options_.ttl);
    if (seconds < 0 || seconds > INT32_MAX)
      throw ApiError::invalid("ttl", "the time to live must be 0 (for ever) to " + std::to_string(INT32_MAX) + " seconds");
    if (options_.max_ttl > 0 && about.ttl && (seconds == 0 || seconds > options_.max_ttl))
      throw ApiError::invalid("ttl", "the time to live may be at most " + std::to_string(options_.max_ttl) + " seconds");
    return seconds == 0 ? 0 : now_() + seconds;
  }

  // The bytes of a state's file and document, which count in its owner's quota.
  static int64_t counted_bytes(const StateInfo& info) {
    return info.bytes + (info.document.is_null() ? 0 : static_cast<int64_t>(dump_json(info.document).size()));
  }

  // Counts a state that is about to be written. Throws ApiError 413 if there is no room for it.
  void reserve(const std::string& owner, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    remove_expired();
    const auto found = owners_.find(owner);
    const Total used = found == owners_.end() ? Total{} : found->second;
    const auto refuse = [bytes](int64_t before, int64_t most, const std::string& what) {
      throw ApiError::too_large("", "the state has " + std::to_string(bytes) + " bytes, and " + std::to_string(before) + " of the " +
                                        std::to_string(most) + " bytes for " + what + " are used: delete some, or do not store it");
    };
    if (used.bytes + bytes > options_.owner_bytes) refuse(used.bytes, options_.owner_bytes, "your states");
    if (folder_.empty() && all_.bytes + bytes > options_.memory_bytes) refuse(all_.bytes, options_.memory_bytes, "all states");
    if (used.states >= options_.owner_states)
      throw ApiError::too_large("", std::to_string(used.states) + " states are stored already, the most for one owner (the new one has " +
                                        std::to_string(bytes) + " bytes): delete some, or do not store it");
    count(owner, 1, bytes);
  }
  void release(const std::string& owner, int64_t bytes) { count(owner, -1, -bytes); }
  void count(const std::string& owner, int64_t states, int64_t bytes) {
    Total& used = owners_[owner];
    used.states += states, used.bytes += bytes;
    all_.states += states, all_.bytes += bytes;
    if (used.states == 0) owners_.erase(owner);
  }

  Record& add(const StateInfo& info, const std::string& owner, int64_t counted) {
    Record& record = records_[info.id];
    record.info = info;
    if (!folder_.empty()) record.info.document = nullptr;
    record.owner = owner;
    record.counted = counted;
    record.number = next_number_++;
    if (info.expires > 0) expiring_.emplace(info.expires, info.id);
    return record;
  }

  void keep_in_memory(Record& record, const std::shared_ptr<const SequenceState>& sequence) {
    if (record.sequence) return;
    record.sequence = sequence;
    record.place = used_.insert(used_.end(), record.info.id);
    memory_bytes_ += record.info.bytes;
    if (folder_.empty()) return;
    while (memory_bytes_ > options_.memory_bytes && !used_.empty()) drop_from_memory(records_.at(used_.front()));
  }

  void drop_from_memory(Record& record) {
    if (!record.sequence) return;
    record.sequence.reset();
    used_.erase(record.place);
    memory_bytes_ -= record.info.bytes;
  }

  // Foreign and unknown ids have the same error.
  Record& require(const std::string& owner, const std::string& id, const std::string& param) {
    remove_expired();
    const auto found = records_.find(id);
    if (found == records_.end() || found->second.owner != owner)
      throw ApiError::not_found(param, param + ": there is no state " + in_quotes(id));
    return found->second;
  }

  void remove_expired() {
    const int64_t now = now_();
    while (!expiring_.empty() && expiring_.begin()->first <= now) {
      const std::string id = expiring_.begin()->second;
      erase(id);
      ++metrics_.expired;
    }
  }

  void erase(const std::string& id) {
    Record& record = records_.at(id);
    drop_from_memory(record);
    release(record.owner, record.counted);
    if (record.info.expires > 0) expiring_.erase({record.info.expires, id});
    records_.erase(id);
    if (!folder_.empty()) remove_files(id);
  }

  void remove_files(const std::string& id) const {
    try {
      remove_file(record_path(id));  // first: a state file without a record is removed at the next start
      remove_file(state_path(id));
    } catch (const Error& error) {
      log_warning(std::string("stored states: ") + error.what());
    }
  }

  void read_folder() {
    remove_stale_temporaries(folder_);
    const std::vector<std::string> names = names_in(folder_);
    const std::set<std::string> all(names.begin(), names.end());
    std::map<std::pair<int64_t, std::string>, std::pair<StateInfo, std::string>> found;  // in the order of their creation
    for (const std::string& file : names) {
      const std::string id = file.substr(0, file.rfind('.'));
      if (!is_state_id(id)) continue;
      if (file.ends_with(".state") && !all.contains(id + ".json")) {
        log_warning(state_path(id) + ": removed, because a server was killed before it had stored the state");
        remove_file(state_path(id));
      }
      if (!file.ends_with(".json")) continue;
      try {
        const Json json = parse_json(read_regular_file(record_path(id)), record_path(id));
        StateInfo info = info_of(json);
        if (info.id != id || info.bytes < 0 || info.tokens < 1) throw Error(record_path(id) + ": its fields are out of range");
        const auto size = static_cast<int64_t>(MappedFile(state_path(id)).bytes().size());
        if (size != info.bytes)
          throw Error(state_path(id) + ": has " + std::to_string(size) + " bytes, where its record has " + std::to_string(info.bytes));
        found.emplace(std::pair(info.created, id), std::pair(std::move(info), json.at("owner").get<std::string>()));
      } catch (const std::exception& error) {
        log_warning(std::string("stored states: skipped: ") + error.what());
        ++metrics_.damaged;
      }
    }
    for (const auto& [key, one] : found) {
      const int64_t bytes = counted_bytes(one.first);
      add(one.first, one.second, bytes);
      count(one.second, 1, bytes);
    }
  }

  const LanguageModel& model_;
  const std::string model_hash_;
  const StateStoreOptions options_;
  const std::string folder_;
  const std::function<int64_t()> now_;
  std::mutex mutex_;
  std::map<std::string, Record> records_;
  std::map<std::string, Total> owners_;
  std::set<std::pair<int64_t, std::string>> expiring_;
  std::list<std::string> used_;  // ids of the states in memory, the least recently used one first
  Total all_;
  int64_t memory_bytes_ = 0, next_number_ = 0;
  StateStoreMetrics metrics_;
};

StateStore::StateStore(const LanguageModel& model, std::string model_hash, const StateStoreOptions& options, std::string folder,
                       std::function<int64_t()> now)
    : impl_(std::make_unique<Impl>(model, std::move(model_hash), options, std::move(folder), std::move(now))) {}

StateStore::~StateStore() = default;

StateInfo StateStore::put(std::shared_ptr<const SequenceState> sequence, const NewState& about) {
  impl_->check_label(about.label);
  return impl_->put(sequence, sequence_file_content(*sequence, impl_->model_hash(), "the state"), about);
}

StateInfo StateStore::put_file(const std::string& content, NewState about) {
  impl_->check_label(about.label);
  about.uploaded = true;
  return impl_->put(std::make_shared<const SequenceState>(parse_state(content, impl_->model(), impl_->model_hash())), content, about);
}

StoredState StateStore::get(const std::string& owner, const std::string& id, const std::string& param) {
  return impl_->get(owner, id, param);
}

StateInfo StateStore::info(const std::string& owner, const std::string& id, const std::string& param) {
  return impl_->info(owner, id, param);
}

std::string StateStore::content(const std::string& owner, const std::string& id) { return impl_->content(owner, id); }

void StateStore::remove(const std::string& owner, const std::string& id) { impl_->remove(owner, id); }

std::vector<StateInfo> StateStore::list(const std::string& owner) { return impl_->list(owner); }

StateStoreMetrics StateStore::metrics() { return impl_->metrics(); }

const std::string& StateStore::model_hash() const { return impl_->model_hash(); }

std::string StateStore::new_id() { return "st_" + random_hex(kIdDigits / 2); }

}  // namespace based
