// SPDX-License-Identifier: MIT
// score: logits of every position of given id lists, perplexity, and drafts.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "host/checkpoint/safetensors.h"
#include "host/cli/verbs.h"
#include "host/lifecycle/deployment.h"
#include "host/lifecycle/step_driver.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

/// vocab  ids below it are ids of the tokenizer; the model's own vocabulary may be padded
Result<std::vector<Ids>> read_prompts(const std::string& path, const ModelRequest& request,
                                      int32_t vocab) {
    std::ifstream file(path);
    if (!file) {
        return error(Code::not_found, "{}: cannot be opened: {}", path, std::strerror(errno));
    }
    std::vector<Ids> prompts;
    std::string line;
    for (int64_t number = 1; std::getline(file, line); ++number) {
        if (line.empty()) {
            continue;
        }
        const Json json = Json::parse(line, nullptr, false);
        if (!json.is_object() || !json.contains("ids") || !json["ids"].is_array() ||
            json["ids"].empty()) {
            return error(Code::invalid_argument, "{}:{}: expected {\"ids\": [numbers]}", path,
                         number);
        }
        Ids ids;
        for (const Json& id : json["ids"]) {
            if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab) {
                return error(Code::invalid_argument, "{}:{}: ids[{}] = {} is not an id below {}",
                             path, number, ids.size(), id.dump(), vocab);
            }
            ids.push_back(id.get<int32_t>());
        }
        if (static_cast<int64_t>(ids.size()) > request.context_tokens) {
            return error(Code::invalid_argument, "{}:{}: {} ids, the profile's context has {}",
                         path, number, ids.size(), request.context_tokens);
        }
        prompts.push_back(std::move(ids));
    }
    if (file.bad()) {
        return error(Code::io, "{}: cannot be read: {}", path, std::strerror(errno));
    }
    if (prompts.empty()) {
        return error(Code::invalid_argument, "{}: holds no line {\"ids\": [numbers]}", path);
    }
    return prompts;
}

/// Negative log-likelihood of one id under a row of logits, in double.
double surprise(const float* row, int32_t vocab, int32_t id) {
    double top = row[0];
    for (int32_t v = 1; v < vocab; ++v) {
        top = std::max(top, static_cast<double>(row[v]));
    }
    double total = 0;
    for (int32_t v = 0; v < vocab; ++v) {
        total += std::exp(row[v] - top);
    }
    return top + std::log(total) - row[id];
}

int32_t argmax(const float* row, int32_t vocab) {
    int32_t best = 0;
    for (int32_t v = 1; v < vocab; ++v) {
        best = row[v] > row[best] ? v : best;
    }
    return best;
}

/// Runs prompts one after the other and writes what comes as it comes.
class Scorer {
  public:
    Scorer(Deployment& d, bool drafts)
        : driver_(*d.model(), d.request()),
          vocab_(d.info().vocab),
          draft_rows_(drafts ? d.info().draft_rows : 0) {}

    Status open(const std::string& path, const std::vector<Ids>& prompts) {
        std::vector<TensorOut> tensors;
        for (size_t i = 0; i < prompts.size(); ++i) {
            const auto n = static_cast<int64_t>(prompts[i].size());
            tensors.push_back({format("logits.{}", i), DType::f32, {n, vocab_}, nullptr});
            if (draft_rows_ > 0) {
                tensors.push_back({format("drafts.{}", i), DType::i32, {draft_rows_}, nullptr});
            }
        }
        return writer_.open(path, tensors);
    }

    Status prompt(const Ids& ids, Json* notes) {
        TENON_TRY(driver_.open());
        size_t at = 0;
        int32_t next = 0;
        const auto take = [&](const TensorView& rows) -> Status {
            for (int64_t r = 0; r < rows.shape[0]; ++r, ++at) {
                const float* row = rows.row<float>(r);
                TENON_TRY(writer_.append(row, static_cast<uint64_t>(vocab_) * sizeof(float)));
                if (at + 1 < ids.size()) {
                    sum_ += surprise(row, vocab_, ids[at + 1]);
                    ++scored_;
                } else {
                    next = argmax(row, vocab_);
                }
            }
            return {};
        };
        TENON_TRY(driver_.prefill(ids, take));
        return draft_rows_ > 0 ? drafts(ids, next, notes) : Status();
    }

    Status close(Json* report) {
        TENON_TRY(writer_.close());
        const double mean = scored_ > 0 ? sum_ / static_cast<double>(scored_) : 0.0;
        (*report)["tokens"] = scored_;
        (*report)["nll"] = mean;
        (*report)["perplexity"] = std::exp(mean);
        return {};
    }

  private:
    /// The drafter follows a window: the last token is run again as a decode row, as serving does.
    Status drafts(const Ids& ids, int32_t next, Json* notes) {
        TENON_TRY(driver_.open());
        TENON_TRY(driver_.prefill(Span<const int32_t>(ids.data(), ids.size() - 1), nullptr));
        int32_t drawn = -1;
        std::vector<int32_t> found;
        TENON_TRY(driver_.decode_and_draft(ids.back(), &drawn, &found));
        if (drawn != next) {
            notes->push_back(format("after {} ids the decode row draws {}, the prompt row {}",
                                    ids.size(), drawn, next));
        }
        found.resize(static_cast<size_t>(draft_rows_), -1);  // -1: no draft there
        return writer_.append(found.data(), found.size() * sizeof(int32_t));
    }

    StepDriver driver_;
    SafetensorsWriter writer_;
    int32_t vocab_;
    int64_t draft_rows_;
    double sum_ = 0;
    int64_t scored_ = 0;
};

Status run(Deployment& d, const ScoreArgs& args, Json* report) {
    const int32_t ids = std::min(d.info().vocab, d.model()->text().info().vocab);
    TENON_ASSIGN(const std::vector<Ids> prompts, read_prompts(args.ids, d.request(), ids));
    if (args.drafts && d.info().draft_rows == 0) {
        return error(Code::invalid_argument,
                     "--drafts: the model has no drafter, or engine.drafts = false");
    }
    std::error_code ec;
    if (std::filesystem::equivalent(args.ids, args.logits, ec)) {
        return error(Code::invalid_argument, "--logits {}: is the file of --ids", args.logits);
    }
    Scorer scorer(d, args.drafts);
    TENON_TRY(scorer.open(args.logits, prompts));
    (*report)["prompts"] = prompts.size();
    Json notes = Json::array();
    for (size_t i = 0; i < prompts.size(); ++i) {
        TENON_TRY_CTX(scorer.prompt(prompts[i], &notes), "{}: prompt {}", args.ids, i);
    }
    TENON_TRY(scorer.close(report));
    if (!notes.empty()) {
        (*report)["notes"] = notes;
    }
    return {};
}

}  // namespace

int score_verb(const ScoreArgs& args) {
    HostServices host;
    Deployment d(host);
    d.quiet();
    const auto load = [&]() -> Status {
        TENON_TRY(d.open(args.profile.profile, args.profile.set));
        TENON_TRY(d.require_plugins());
        TENON_TRY(d.create());
        TENON_TRY(d.plan());
        TENON_TRY(d.check_fit());
        return d.load();
    };
    Status status = load();
    if (!status.ok()) {
        return fail(d.exit_code(), status.message().str());
    }
    Json report = Json::object();
    status = guard([&] { return run(d, args, &report); });
    if (!status.ok()) {
        return fail(exit_code_of(status.code(), kExitUsage), status.message().str());
    }
    std::cout << report.dump() << '\n';
    return kExitOk;
}

}  // namespace tenon::cli
