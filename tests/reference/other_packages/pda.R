# Rscript pda.R FOLDER heart.csv: pda's figures of docs/other_packages.md, as JSON; FOLDER holds R/ of Penncil/pda.
suppressMessages({library(lme4); library(data.table)})
given <- commandArgs(TRUE)
for (name in c("dlmm.R", "DLM.R", "DPQL.R")) source(file.path(given[1], "R", name))
heart <- na.omit(read.csv(given[2], na.strings = c("NA", ""))[c("disease", "age", "sex", "oldpeak", "exang", "hospital")])

# In place of pdaPut and pdaGet: files of JSON, with pdaPut's default of four decimals.
files <- list()
put <- function(site, step, value) files[[paste0(site, step)]] <<- as.character(jsonlite::toJSON(value, digits = 4))
pdaGet <- function(name, config) jsonlite::fromJSON(files[[name]])
frame <- function(y, X) data.table(data.frame(outcome = y, X))  # as pda() makes it
one <- "X.Intercept."

send <- function(rows, site) for (s in unique(as.character(site))) put(s, "_initialize", DLM.initialize(rows[site == s], NULL, NULL))
sums <- function(site, q) sapply(unique(as.character(site)), simplify = FALSE, function(s) {  # as DLM.estimate does
  i <- pdaGet(paste0(s, "_initialize")); z <- seq_len(q)
  list(SiX = i$SiX, SiXZ = i$SiX[, z, drop = FALSE], SiXY = i$SiXY, SiZ = i$SiX[z, z, drop = FALSE],
       SiZY = i$SiXY[z, , drop = FALSE], SiY = i$SiY, ni = i$ni) })
fitted <- function(S, reml) { capture.output(f <- lmm.fit(SiXYZ = S, reml = reml, hessian = TRUE)); f }
figures <- function(names, b, se, variances, ...) list(terms = setNames(Map(c, unname(b), unname(se)), names), variances = variances, ...)

send(frame(Dyestuff$Yield, model.matrix(~1, Dyestuff)), Dyestuff$Batch)
control <- list(sites = unique(as.character(Dyestuff$Batch)), heterogeneity = TRUE, heterogeneity_effect = "random",
                risk_factor = one, risk_factor_heterogeneity = one)
invisible(capture.output(r <- DLM.estimate(NULL, control, NULL)))
S <- sums(Dyestuff$Batch, 1)
criterion <- function(v, term) { p <- lmm.profile0(matrix(v), SiXYZ = S); p$lp - term * c(p$allterms$remlterm) / 2 }
best <- function(term) { v <- optimize(criterion, c(1e-6, 10), term = term, maximum = TRUE, tol = 1e-10)$maximum
                         v * lmm.profile0(matrix(v), SiXYZ = S)$s2 }
ml <- fitted(S, FALSE)
dyestuff <- figures("(Intercept)", r$bhat, r$sebhat, c(r$Vhat, r$sigmahat^2), exchanges = 1, numbers = length(unlist(S[[1]][c("SiX", "SiXY", "SiY", "ni")])),
                    batch_variance_of_its_criterion = best(0), batch_variance_with_remlterm = best(1), batch_variance_ml = c(ml$V))

send(frame(sleepstudy$Reaction, model.matrix(~Days, sleepstudy)), sleepstudy$Subject)
control <- modifyList(control, list(sites = unique(as.character(sleepstudy$Subject)), risk_factor = c(one, "Days"),
                                    risk_factor_heterogeneity = c(one, "Days")))
error <- tryCatch({ capture.output(DLM.estimate(NULL, control, NULL)); "" }, error = conditionMessage)
S <- sums(sleepstudy$Subject, 2)
r <- fitted(S, TRUE)
sleep <- figures(c("(Intercept)", "Days"), r$b, r$b.sd, c(diag(r$V), r$s2), exchanges = 1,
                 numbers = length(unlist(S[[1]][c("SiX", "SiXY", "SiY", "ni")])), error_of_DLM.estimate = error)

rows <- frame(heart$disease, model.matrix(~ age + sex + oldpeak + exang, heart))
control <- list(sites = unique(heart$hospital), family = "binomial", variables_heterogeneity = one,
                risk_factor = colnames(rows)[-1], risk_factor_heterogeneity = one)
rounds <- 10
for (t in seq_len(rounds)) {  # as pda() goes from round to round
  control$round <- t
  for (s in control$sites) { sent <- DPQL.derive(rows[heart$hospital == s], control, list(site_id = s)); put(s, paste0("_derive_", t), sent) }
  capture.output(e <- DPQL.estimate(NULL, control, NULL))
  control$bhat <- e$bhat; control$uhat <- e$uhat
}
names <- c("(Intercept)", "age", "sexMale", "oldpeak", "exangyes")
cat(jsonlite::toJSON(auto_unbox = TRUE, digits = 9, pretty = 1, list(
  version = read.dcf(file.path(given[1], "DESCRIPTION"))[, "Version"], dyestuff = dyestuff, sleepstudy = sleep,
  heart = figures(names, e$bhat, e$sebhat, c(e$Vhat), exchanges = rounds, numbers = rounds * length(unlist(sent))))), "\n")
