# Numbers of lme4's summary, logLik, AIC, BIC, anova and confint: Rscript inference.R > inference.json
suppressMessages({library(lme4); library(jsonlite)})
numbers <- function(f) list(logLik = as.numeric(logLik(f)), df = attr(logLik(f), "df"), nobs = nobs(f),
                            AIC = AIC(f), BIC = BIC(f))
lrt <- function(a, b) { t <- anova(a, b, refit = FALSE); list(chisq = t$Chisq[2], df = t$Df[2], p = t$`Pr(>Chisq)`[2]) }
s <- sleepstudy
d <- transform(mlmRev::Contraception, age = age / 10)
fits <- list(
  null = lmer(Reaction ~ 1 + (1 | Subject), s, REML = FALSE),
  intercept = lmer(Reaction ~ Days + (1 | Subject), s, REML = FALSE),
  diagonal = lmer(Reaction ~ Days + (Days || Subject), s, REML = FALSE),
  full = lmer(Reaction ~ Days + (Days | Subject), s, REML = FALSE),
  full_reml = lmer(Reaction ~ Days + (Days | Subject), s),
  intercept_reml = lmer(Reaction ~ Days + (1 | Subject), s),
  pooled = lm(Reaction ~ Days, s),
  binomial = glmer(use ~ age + (1 | district), d, binomial,
                   control = glmerControl(tolPwrss = 1e-10)),
  binomial_0 = glmer(use ~ 1 + (1 | district), d, binomial,
                     control = glmerControl(tolPwrss = 1e-10)),
  binomial_pooled = glm(use ~ age, binomial, d))
ci <- function(f) { m <- suppressMessages(confint(f, oldNames = FALSE, quiet = TRUE)); setNames(lapply(seq_len(nrow(m)), function(i) m[i, ]), rownames(m)) }
out <- list(made = "Rscript inference.R; lme4 and R as below", lme4 = as.character(packageVersion("lme4")), R = R.version.string,
  fits = lapply(fits, numbers),
  lrt = list(fixed = lrt(fits$null, fits$intercept), slope = lrt(fits$intercept, fits$diagonal), full = lrt(fits$diagonal, fits$full),
             binomial = lrt(fits$binomial_0, fits$binomial)),
  profile = list(diagonal = ci(fits$diagonal), full = ci(fits$full), intercept = ci(fits$intercept), binomial = ci(fits$binomial)))
cat(toJSON(out, auto_unbox = TRUE, digits = 12, pretty = TRUE))
