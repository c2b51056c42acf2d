#include "based/serve/states/prefix_index.h"

#include <algorithm>
#include <functional>

#include "based/core/error.h"

namespace based {
namespace {

size_t common_length(std::span<const int64_t> a, std::span<const int64_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first - a.begin());
}

}  // namespace

PrefixIndex::PrefixIndex(int64_t most_tokens) : most_tokens_(most_tokens) {}

PrefixIndex::Match PrefixIndex::match(const std::string& owner, std::span<const int64_t> ids, int64_t most) const {
  Match found;
  const auto root = roots_.find(owner);
  if (root == roots_.end()) return found;
  const Node* node = root->second;
  while (true) {
    const std::span<const int64_t> rest = ids.subspan(static_cast<size_t>(found.common));
    if (rest.empty()) return found;
    const auto child = node->children.find(rest.front());
    if (child == node->children.end()) return found;
    node = child->second;
    const size_t common = common_length(node->edge, rest);
    found.common += static_cast<int64_t>(common);
    if (common < node->edge.size()) return found;
    if (node->entry >= 0 && found.common <= most) found.entry = node->entry, found.entry_tokens = found.common;
  }
}

std::vector<int64_t> PrefixIndex::record(const std::string& owner, std::span<const int64_t> ids) {
  if (ids.empty() || static_cast<int64_t>(ids.size()) + 2 * kNodeTokens > most_tokens_) return {};
  Node& node = descend(owner, ids, /*exact=*/false);
  if (node.entry < 0) touch(node);
  return make_room(node);
}

PrefixIndex::Put PrefixIndex::put(const std::string& owner, std::span<const int64_t> ids, int64_t bytes, Tier tier, bool interval) {
  Put put;
  if (ids.empty() || static_cast<int64_t>(ids.size()) + 2 * kNodeTokens > most_tokens_) return put;
  Node& node = descend(owner, ids, /*exact=*/true);
  put.is_new = node.entry < 0;
  if (put.is_new) {
    unlist(node);
    node.entry = next_entry_++;
    node.bytes = bytes;
    node.tier = tier;
    node.interval = interval;
    bytes_[static_cast<size_t>(tier)] += bytes;
    entries_.emplace(node.entry, &node);
    list(node);
    touch(node);
  } else {
    use(node.entry);
  }
  put.entry = node.entry;
  put.forgotten = make_room(node);
  return put;
}

void PrefixIndex::use(int64_t entry) {
  Node& node = *entries_.at(entry);
  unlist(node);
  node.interval = false;
  list(node);
  touch(node);
}

void PrefixIndex::move(int64_t entry, Tier tier) {
  Node& node = *entries_.at(entry);
  unlist(node);
  bytes_[static_cast<size_t>(node.tier)] -= node.bytes;
  node.tier = tier;
  bytes_[static_cast<size_t>(node.tier)] += node.bytes;
  list(node);
}

void PrefixIndex::erase(int64_t entry) {
  Node& node = *entries_.at(entry);
  drop_entry(node);
  tidy(node);
}

std::optional<int64_t> PrefixIndex::victim(Tier tier) const {
  const std::pmr::map<Rank, Node*>& ranks = ranks_[static_cast<size_t>(tier)];
  if (ranks.empty()) return {};
  return ranks.begin()->second->entry;
}

std::vector<int64_t> PrefixIndex::ranked(Tier tier) const {
  const std::pmr::map<Rank, Node*>& ranks = ranks_[static_cast<size_t>(tier)];
  std::vector<int64_t> entries;
  entries.reserve(ranks.size());
  for (const auto& [rank, node] : ranks) entries.push_back(node->entry);
  return entries;
}

// --- nodes

PrefixIndex::Rank PrefixIndex::rank_of(const Node& node) {
  const int value = node.children.size() >= 2 ? 2 : node.interval ? 0 : 1;
  return {value, node.used};
}

PrefixIndex::Node& PrefixIndex::new_node(Node* parent, std::span<const int64_t> edge) {
  Node& node = nodes_.emplace_front(&memory_);
  node.self = nodes_.begin();
  node.parent = parent;
  node.edge.assign(edge.begin(), edge.end());
  node.used = ++clock_;
  tokens_ += size(node);
  return node;
}

// The node of exactly these tokens, which is made if there is none. If not `exact`, and they are a prefix of recorded sequences, the node
// of one of these: it needs no split.
PrefixIndex::Node& PrefixIndex::descend(const std::string& owner, std::span<const int64_t> ids, bool exact) {
  auto root = roots_.find(owner);
  if (root == roots_.end()) {
    root = roots_.emplace(owner, &new_node(nullptr, {})).first;
    root->second->owner = owner;
  }
  Node* node = root->second;
  while (!ids.empty()) {
    const auto child = node->children.find(ids.front());
    if (child == node->children.end()) {
      Node& leaf = new_node(node, ids);
      unlist(*node);
      node->children.emplace(ids.front(), &leaf);
      list(*node);
      list(leaf);
      return leaf;
    }
    node = child->second;
    const size_t common = common_length(node->edge, ids);
    if (common == ids.size() && !exact) return *node;
    if (common < node->edge.size()) node = &split(*node, common);
    ids = ids.subspan(common);
  }
  return *node;
}

// Cuts the node's edge after `length` tokens, and returns the new node that is above it.
PrefixIndex::Node& PrefixIndex::split(Node& node, size_t length) {
  Node& above = new_node(node.parent, std::span(node.edge).first(length));
  tokens_ -= static_cast<int64_t>(length);
  node.edge.erase(node.edge.begin(), node.edge.begin() + static_cast<ptrdiff_t>(length));
  above.children.emplace(node.edge.front(), &node);
  node.parent->children.at(above.edge.front()) = &above;
  node.parent = &above;
  return above;
}

// Keeps the tree compact after `node` has lost its entry or a child. A node without an entry is joined with its only child. A root without
// children is removed.
void PrefixIndex::tidy(Node& node) {
  if (node.parent == nullptr) {
    if (!node.children.empty()) return;
    roots_.erase(node.owner);
    remove(node);
    return;
  }
  if (node.entry >= 0 || node.children.size() != 1) return;
  Node& child = *node.children.begin()->second;
  tokens_ += static_cast<int64_t>(node.edge.size());
  child.edge.insert(child.edge.begin(), node.edge.begin(), node.edge.end());
  child.parent = node.parent;
  node.parent->children.at(node.edge.front()) = &child;
  remove(node);
}

void PrefixIndex::remove(Node& node) {
  unlist(node);
  tokens_ -= size(node);
  nodes_.erase(node.self);
}

// --- the orders of eviction

// Lists the node in the order that it belongs to. Each change of its children, entry, tier or last use is between unlist() and list().
void PrefixIndex::list(Node& node) {
  if (node.entry >= 0)
    ranks(node).emplace(rank_of(node), &node);
  else if (node.children.empty() && node.parent != nullptr)
    bare_leaves_.emplace(node.used, &node);
}

void PrefixIndex::unlist(Node& node) {
  if (node.entry >= 0)
    ranks(node).erase(rank_of(node));
  else
    bare_leaves_.erase(node.used);
}

void PrefixIndex::touch(Node& node) {
  unlist(node);
  node.used = ++clock_;
  list(node);
}

void PrefixIndex::drop_entry(Node& node) {
  unlist(node);
  bytes_[static_cast<size_t>(node.tier)] -= node.bytes;
  entries_.erase(node.entry);
  node.entry = -1;
  list(node);
}

// Forgets sequences until the trees are within their size again: first leaves without entries, then entries, those on disk first. Returns
// the forgotten entries. The node `keep` stays.
std::vector<int64_t> PrefixIndex::make_room(const Node& keep) {
  std::vector<int64_t> forgotten;
  while (tokens_ > most_tokens_) {
    const auto leaf = std::find_if(bare_leaves_.begin(), bare_leaves_.end(), [&](const auto& each) { return each.second != &keep; });
    if (leaf != bare_leaves_.end()) {
      Node& gone = *leaf->second;
      Node& parent = *gone.parent;
      unlist(parent);
      parent.children.erase(gone.edge.front());
      remove(gone);
      list(parent);
      if (&parent != &keep) tidy(parent);
      continue;
    }
    Node* evicted = nullptr;
    for (const auto& ranks : {std::cref(ranks_[1]), std::cref(ranks_[0])}) {
      const auto found = std::find_if(ranks.get().begin(), ranks.get().end(), [&](const auto& each) { return each.second != &keep; });
      if (evicted == nullptr && found != ranks.get().end()) evicted = found->second;
    }
    if (evicted == nullptr) break;
    forgotten.push_back(evicted->entry);
    drop_entry(*evicted);
    tidy(*evicted);
  }
  return forgotten;
}

}  // namespace based
