# Rscript lme4.R heart.csv: lme4's figures of docs/other_packages.md, as JSON.
suppressMessages(library(lme4))
heart <- na.omit(read.csv(commandArgs(TRUE)[1], na.strings = c("NA", ""))[c("disease", "age", "sex", "oldpeak", "exang", "hospital")])
figures <- function(m) list(terms = apply(coef(summary(m))[, 1:2, drop = FALSE], 1, unname, simplify = FALSE),
                            variances = as.data.frame(VarCorr(m))$vcov, log_likelihood = c(logLik(m)))
tight <- lmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-10))
f <- disease ~ age + sex + oldpeak + exang + (1 | hospital)
cat(jsonlite::toJSON(auto_unbox = TRUE, digits = 9, pretty = 1, list(
  version = as.character(packageVersion("lme4")),
  dyestuff = figures(lmer(Yield ~ 1 + (1 | Batch), Dyestuff, control = tight)),
  sleepstudy = figures(lmer(Reaction ~ Days + (Days || Subject), sleepstudy, control = tight)),
  heart = figures(glmer(f, heart, binomial, glmerControl("bobyqa", tolPwrss = 1e-12))),
  heart_quadrature = figures(glmer(f, heart, binomial, nAGQ = 15)))), "\n")
